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
	if probes := 5*time.Second + 3*2*time.Second; probes != clientIdle {
		t.Errorf("the probes take %v, not %v", probes, clientIdle)
	}
	for setting, value := range map[string]string{
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
		"tcp_user_timeout": fmt.Sprint(clientIdle.Milliseconds()),
	} {
		if text := fmt.Sprintf("set_config('%s', '%s', false)", setting, value); !strings.Contains(statements["acquire"], text) {
			t.Errorf("acquire.sql lacks %s", text)
		}
	}
	if !strings.Contains(statements["lock_one"], "pg_advisory_xact_lock(") {
		t.Error("the statement lacks the call that is replaced for a shared lock")
	}
	if defaultKeepAlive < minKeepAlive {
		t.Errorf("the default keep-alive timeout is below its minimum")
	}
}
