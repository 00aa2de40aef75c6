package schema

import (
	"fmt"
	"strings"
)

// ofClient ends the application_name of a client's connections in pg_stat_activity.
const (
	ofClient = " (pglock)"
	maxOwn   = MaxName - len(ofClient)
)

// ApplicationName returns the application_name of a client's connections: that of the
// application, or by default the name of the client as a holder, of a long one the end.
func ApplicationName(app, holder string) string {
	if app == "" {
		app = strings.ToValidUTF8(holder[max(0, len(holder)-maxOwn):], "")
	}
	return fmt.Sprintf("%.*s%s", maxOwn, app, ofClient)
}

// SessionOf reports whether a connection with that application_name seems to be of the process of a
// holder. An application that names its connections itself can call them like its holder, or by host and
// process ID, as a holder's name begins by default.
func SessionOf(application, holder string) bool {
	own, found := strings.CutSuffix(application, ofClient)
	return found && own != "" && (own == holder || strings.HasPrefix(holder, own+":") || len(own) == maxOwn && strings.HasSuffix(holder, own))
}
