"""Rules in a file that say who may do what, and an audit log. Written for operators in docs/acl.md."""
