"""Batches: from the script's dataset or `DataLoader` to what `losses` is called with.

`data_loader` reads the configuration of a `DataLoader`; `samples` makes a batch, bit-identical wherever it is read;
`prefetch` does so ahead in other processes; `batch_bytes` is how a batch travels from there.

May import `model`, besides what lies below `torch`.
"""
