"""Which node serves which run, and with which buckets, shards and weights versions. Pure."""
