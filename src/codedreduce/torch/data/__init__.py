"""Batches: from the script's dataset or `DataLoader` to what `losses` is called with.

`data_loader` reads the settings of a `DataLoader`, `samples` makes a batch to the same bits wherever it is read,
`prefetch` does so ahead in other processes, `batch_bytes` is how a batch comes from there.

May import `seeding`, besides what lies below `torch`.
"""
