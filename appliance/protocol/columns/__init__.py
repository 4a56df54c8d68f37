"""Records of whole batches as columns, both ways: what the Spark connector and the native client share.

    batches ── batch_headers, header_kernel          where each batch lies
            ── decode ── record_kernel, record_steps  where each record's fields lie
            ── decompression, memory                  into memory that is used again
            ── arrow_arrays ── gather_kernel          positions → Arrow
    columns ── encode ── encode_kernel                Arrow → records, partitions of keys

`compiled` has numba compile the kernels where it is installed. No process of the broker imports this package: it needs
numpy, and pyarrow for `arrow_arrays` and `encode` (decision 0105).
"""
