"""Where units are trained: in processes of this machine, or on a Ray cluster."""
