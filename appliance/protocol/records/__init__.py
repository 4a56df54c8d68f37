"""Record batches, format v2: header, records, codecs. Bytes in, values out; no file, no socket.

The format is Kafka's (`clients/.../common/record/DefaultRecordBatch.java`, `DefaultRecord.java`; KIP-98,
KIP-32, KIP-110). Every other room meets a batch through this package and never counts its bytes on its own.
"""
