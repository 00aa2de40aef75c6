package text_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock/internal/text"
)

// TestShort: durations as they are shown.
func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "-1s", 0: "0s", 1500 * time.Microsecond: "1ms", 999 * time.Millisecond: "999ms", 1250 * time.Millisecond: "1.2s", 2 * time.Second: "2s",
		10 * time.Second: "10s", 59*time.Second + 999*time.Millisecond: "59s", 61 * time.Second: "1m1s", 59*time.Minute + 59*time.Second: "59m59s",
		3*time.Hour + 7*time.Minute: "3h7m", 49 * time.Hour: "2d1h",
	} {
		if got := text.Short(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
