"""What papers claim in their abstracts, in settings as near to theirs as can be had."""
