module lanesgen

go 1.26
