import gzip,json,re
from dataclasses import dataclass
@dataclass(frozen=True)
class C:
    backend:str; name:str; bm:int; bn:int; bk:int=64; split:int=1; cm:int=1; cn:int=1; pp:bool=False; ctas:int=1; persistent:bool=True; swap:bool=False; tf32:bool=False
def parse(backend,name):
    if backend=='triton_jit':
        p=name.split('/'); bm,bn,bk=map(int,p[0].split('x')); rest=p[3:]
        split=1
        for r in rest:
            if r.startswith('split'): split=int(r[5:])
        return C(backend,name,bm,bn,bk,split,1,1,'pingpong' in rest,1,'resident' in rest,'turned' in rest)
    n=name
    if n.startswith('hopper_'): n=n[7:]
    pp=n.startswith('pingpong_'); n=n.removeprefix('pingpong_')
    m=re.match(r'(\d+)x(\d+)',n); bm,bn=int(m[1]),int(m[2]); rest=n[m.end():]
    split=1;cm=cn=1;persist=True
    s=re.search(r'_s(\d+)',rest)
    if s: split=int(s[1]); persist=False
    s=re.search(r'_p?([12])x([12])',rest)
    if s: cm,cn=int(s[1]),int(s[2])
    if '_p' in rest: persist=False
    if backend=='cupy_raw' and pp and (cm,cn)==(1,1): cm,cn=1,2
    if (bm,bn) in ((144,128),(96,128),(160,128)): persist=False
    return C(backend,name,bm,bn,64,split,cm,cn,pp,2 if split>=4 and bm==64 else 1,persist)
def load(path='../docs/lab/two-clocks-h100.jsonl.gz'):
    out=[]
    for l in gzip.open(path,'rt'):
        r=json.loads(l); op,shape,dt=r['workload'].split('/')
        if dt=='tfloat32': continue
        m,k,n=map(int,shape.split('x'))
        ts={}
        for key,(full,cap) in r['times'].items():
            if key=='torch.mm': continue
            b,name=key.split(' ',1); ts[parse(b,name)]=full
        out.append(((m,k,n),dt,r['times']['torch.mm'][0],ts))
    return out
if __name__=='__main__':
    d=load(); print(len(d), sum(len(x[3]) for x in d))
