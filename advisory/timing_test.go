package advisory

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestTimesFitTogether: the times that other files and the documentation state are these.
func TestTimesFitTogether(t *testing.T) {
	t.Parallel()
	if longest := maxPause + maxPause/2; longest != 375*time.Millisecond {
		t.Errorf("the longest pause is %v, the documentation says 375 ms", longest)
	}
	if longest := nextPause + nextPause/2; 8*longest > turnstileIdle {
		t.Errorf("a session that is next pauses for %v, and the server ends it after %v of silence", longest, turnstileIdle)
	}
	if probes := 5*time.Second + 3*2*time.Second; probes != clientIdle {
		t.Errorf("the probes take %v, not %v", probes, clientIdle)
	}
	for setting, value := range map[string]string{
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
		"tcp_user_timeout": fmt.Sprint(clientIdle.Milliseconds()),
	} {
		if text := fmt.Sprintf("set_config('%s', '%s', false)", setting, value); !strings.Contains(passFile, text) {
			t.Errorf("pass.sql lacks %s", text)
		}
	}
	if text := fmt.Sprintf("WHEN 'next' THEN '%gs'", turnstileIdle.Seconds()); !strings.Contains(passFile, text) {
		t.Errorf("pass.sql lacks %s", text)
	}
	if defaultKeepAlive < minKeepAlive {
		t.Errorf("the default keep-alive timeout is below its minimum")
	}
}
