import random,math,sys
from fit import *
def score(p):
    r=evaluate(p); return sum(x[0] for x in r.values())+0.15*sum(x[2] for x in r.values())+0.15*sum(abs(x[3]) for x in r.values())+0.05*sum(x[1] for x in r.values())
best=list(p0); s=score(best); random.seed(1)
import time; t=time.time()
while time.time()-t<float(sys.argv[1]):
    q=list(best)
    for i in random.sample(range(11),random.choice((1,1,2,3))): q[i]*=math.exp(random.gauss(0,0.15))
    z=score(q)
    if z<s: best,s=q,z
print(s,[round(x,3) for x in best])
for b,r in evaluate(best,True).items(): print(b,[round(float(x),3) for x in r])
