"""What people look at: tables, figures and the HTML report."""
