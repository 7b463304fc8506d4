"""Looking into a journal, checking it, and what is done to one offline."""
