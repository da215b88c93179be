import sys
def edit(p, pairs):
    t=open(p).read()
    for a,b in pairs:
        assert t.count(a)==1,(p,t.count(a),a)
        t=t.replace(a,b)
    open(p,'w').write(t)
