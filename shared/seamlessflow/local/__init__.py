"""Services as processes of one machine: started, watched, and ended in order."""
