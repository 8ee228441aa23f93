"""What each command does, one module per verb."""
