$header
