"""Who may do what: rules, and what they say of one principal, operation and resource."""
