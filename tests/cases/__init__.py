"""Cases from the field, by their numbers: small inputs behind real reports, each with the right value."""
