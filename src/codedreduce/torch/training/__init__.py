"""What is trained, and the rehearsal that checks it before the first round, so that no gradient is silently wrong.

`training` has the model, data, losses and how batches are drawn. `rehearsal` computes some samples together, apart and
twice, with `fixed_rng` in place of random numbers; `fingerprint` compares samples; `denominators`
finds means with denominators that differ between samples; `grad_scaler` sees scaled losses; `compilation` has one
process of a host compile at a time.

May import `model` and `data`, besides what lies below `torch`.
"""
