package main

import (
	"math"
	"testing"
)

func TestBucketsAreContiguousAndBoundTheirValues(t *testing.T) {
	for _, value := range []uint64{0, 1, 63, 64, 127, 128, 129, 1000, 123_456_789, math.MaxInt64} {
		bucket := bucketOf(value)
		if low := lowerBound(bucket); low > value {
			t.Errorf("%d is in bucket %d, which begins at %d", value, bucket, low)
		}
		if bucket+1 < bucketMax && lowerBound(bucket+1) <= value {
			t.Errorf("%d is in bucket %d, but the next begins at %d", value, bucket, lowerBound(bucket+1))
		}
	}
}

func TestQuantilesAreWithinTheErrorOfABucket(t *testing.T) {
	var h histogram
	for i := int64(1); i <= 10_000; i++ {
		h.record(i * 1000) // 1 us .. 10 ms
	}
	for _, c := range []struct{ q, want float64 }{{0.5, 5000}, {0.99, 9900}, {0, 1}} {
		if got := h.micros(c.q); math.Abs(got-c.want) > c.want/64+0.1 {
			t.Errorf("quantile %v is %v us, want %v", c.q, got, c.want)
		}
	}
	if h.max != 10_000_000 {
		t.Errorf("max is %d", h.max)
	}
	if (&histogram{}).micros(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
}
