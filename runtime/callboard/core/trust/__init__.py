"""Trust: the content of a workspace that a person has to approve before it is used."""
