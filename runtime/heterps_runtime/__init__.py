"""The real world: trace, profile, execute, checkpoint, fine-tune online."""
