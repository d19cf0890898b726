import math,sys,numpy as np
sys.path.insert(0,'.')
from data import load
D=load()
SM=132; CLK=1980.0  # MHz nominal; in cycles/us
def raster(tm,tn,slots):
    """tiles at once: a near-square set of `slots` tiles (rows, cols), groups of 8 rows"""
    g=min(tm,8); return g,min(tn,max(1,math.ceil(slots/g)))
def predict(c,m,k,n,p):
    tc,l2,dram,launch,prol,epi,red,ppgain,smem,mix,ppl=p
    tm=-(-m//(c.bm*c.cm))*c.cm; tn=-(-n//(c.bn*c.cn))*c.cn
    tiles=tm*tn; ctas=tiles*c.split
    slots=SM*c.ctas
    waves=-(-ctas//slots)
    # the busiest SM's tiles, and how many SMs work
    frac=min(ctas/SM, c.ctas) if ctas<=slots else c.ctas
    kk=-(-k//(c.bk*c.split))*c.bk
    busy=min(ctas,slots)/SM   # CTAs per SM in a wave
    # tensor core: cycles a CTA, times CTAs on one SM
    per=math.ceil(busy) if busy>1 else 1
    math_cyc=per*c.bm*c.bn*kk/2048/tc
    bytes_cta=kk*2*(c.bm/c.cn+c.bn/c.cm)
    l2_cyc=min(ctas,slots)*bytes_cta/(l2*SM)
    # DRAM: unique bytes of a wave
    at=max(1,min(tiles,slots//c.split)); rows,cols=raster(tm,tn,at)
    uniq=2*kk*c.split*(min(rows*c.bm,m)+min(cols*c.bn,n))
    unique_all=2*(m*k+k*n)
    dram_cyc=min(uniq,unique_all)/dram
    mm,nn=(c.bn,c.bm) if c.swap or (c.backend!='triton_jit' and (c.bm,c.bn) in ((144,128),(96,128),(160,128))) else (c.bm,c.bn)
    smem_cyc=per*kk/16*(-(-mm//64)*(2048+32*nn)+32*(c.bm+c.bn))/(128*smem)
    terms=(math_cyc,smem_cyc,l2_cyc,dram_cyc)
    loop=sum(x**mix for x in terms)**(1/mix)*(ppl if c.pp else 1)
    epi_cyc=c.bm*c.bn*2/epi*per
    redc=(c.split>1)*(red+ c.bm*c.bn*4*(c.split-1)/c.split/16)
    if c.pp and waves>1: hidden=min(epi_cyc,loop*0.5)
    else: hidden=0
    over=(prol+epi_cyc+redc)
    if c.persistent and waves>1:
        total=waves*loop+prol+waves*(epi_cyc)*(ppgain if c.pp else 1.0)
    else:
        total=waves*(loop+over)
    # least: bytes of all once
    floor=(unique_all+2*m*n)/dram
    return launch+max(total,floor)/CLK
names=['tc','l2','dram','launch','prol','epi','red','ppgain','clk','waste']
p0=[1.061, 48.933, 1428.909, 1.158, 1240.876, 13.343, 1622.245, 0.482, 0.884, 10.07,1.05]
def evaluate(p,verbose=False,backends=('cupy_raw','numba_cuda','triton_jit')):
    res={}
    for b in backends:
        loss=[];err=[]
        for (m,k,n),dt,ref,ts in D:
            mine={c:t for c,t in ts.items() if c.backend==b}; lo=min(mine.values(),default=0); mine={c:t for c,t in mine.items() if t<1.6*lo and not(b=='numba_cuda' and c.name in ('128x192_2x1','128x256_2x1'))}
            if len(mine)<2: continue
            pr={c:predict(c,m,k,n,p) for c in mine}
            pick=min(pr,key=pr.get); best=min(mine,key=mine.get)
            loss.append(math.log(mine[pick]/mine[best])); err+= [math.log(pr[c]/mine[c]) for c in mine]
            if verbose and loss[-1]>0.05: print(b,(m,k,n),'pick',pick.name,round(mine[pick],1),round(pr[pick],1),'best',best.name,round(mine[best],1),round(pr[best],1))
        res[b]=(math.exp(np.mean(loss))-1, max(loss), np.std(err), np.mean(err), len(loss))
    return res
if __name__=='__main__':
    for b,r in evaluate(p0,True).items(): print(b,[round(float(x),3) for x in r])
