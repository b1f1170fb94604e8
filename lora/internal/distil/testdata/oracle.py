"""Losses and gradients of distillation by torch, in float64, for loss_test.go.

    python oracle.py > oracle.json
"""
import json
import torch
import torch.nn.functional as F

rows, vocab, labels = 3, 40, [7, 0, 39]
g = torch.Generator().manual_seed(5)
teacher = (4 * torch.randn(rows, vocab, generator=g)).float()
student = (teacher + 2 * torch.randn(rows, vocab, generator=g)).float()
teacher[1, 3] = teacher[1, 5] = teacher[1].max()  # a tie


def divergence(top, tau, z):
    p, q = F.log_softmax(teacher.double() / tau, -1), F.log_softmax(z / tau, -1)
    if not top:
        return F.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    # sort is stable: of equal values the first position comes first
    ids = torch.sort(p, dim=-1, descending=True, stable=True).indices
    likely, others = ids[:, :top], ids[:, top:]
    bucket = lambda x: torch.cat([x.gather(1, likely), x.gather(1, others).logsumexp(1, keepdim=True)], 1)
    return F.kl_div(bucket(q), bucket(p), log_target=True, reduction="none").sum(-1)


cases = []
for top in (8, 0):
    for tau in (1, 2, 0.5):
        for ce in (0, 0.3):
            z = student.double().requires_grad_()
            loss = tau**2 * divergence(top, tau, z) + ce * F.cross_entropy(z, torch.tensor(labels), reduction="none")
            (loss.sum() / rows).backward()
            cases.append({"top": top, "temperature": tau, "ce": ce, "losses": loss.tolist(),
                          "gradients": [round(v, 10) for v in z.grad.flatten().tolist()]})
print(json.dumps({"labels": labels, "teacher": teacher.tolist(), "student": student.tolist(), "cases": cases}))
