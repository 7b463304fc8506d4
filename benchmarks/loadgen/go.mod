module tidegate/loadgen

go 1.23
