package advisory

import "context"

// PID returns the server process that holds the lock.
func (s *Session) PID() uint32 { return s.pid }

// Setting returns a setting of the session's connection, and "" if the server does not know it.
// It stops the session's watcher.
func Setting(ctx context.Context, s *Session, name string) (value string, err error) {
	s.stopWatch()
	<-s.watchDone
	err = s.conn.QueryRow(ctx, "SELECT coalesce(current_setting($1, true), '')", name).Scan(&value)
	return value, err
}

// Forget makes the server's session release the lock without telling s.
func Forget(ctx context.Context, s *Session) error {
	s.stopWatch()
	<-s.watchDone
	_, err := s.conn.Exec(ctx, "SELECT pg_advisory_unlock_all()")
	return err
}

// Admitted returns how many keys of that pool or connection have callers that are admitted or wait
// for it.
func Admitted(db any) int {
	n := 0
	for _, a := range []*admission{doAdmission, sessionAdmission} {
		a.mu.Lock()
		for key := range a.open {
			if key.db == db {
				n++
			}
		}
		a.mu.Unlock()
	}
	return n
}
