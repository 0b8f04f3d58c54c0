"""What every format needs, pure: knows no protocol, no socket and no clock."""
