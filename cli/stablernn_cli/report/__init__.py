"""The certificate document of ``certify --report``: its content, as JSON types, and the page that shows it."""
