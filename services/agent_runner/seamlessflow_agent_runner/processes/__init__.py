"""Agent processes: forked from warm interpreters, held within limits, and gone at their end."""
