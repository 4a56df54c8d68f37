"""What a worker and a replica process do alike with the partitions that they hold open."""
