package testserver

// account is whom a server's processes run as. Nil is the caller, and the only choice on Windows.
type account struct{}

func droppingRoot() bool                   { return false }
func serverAccount() (*account, error)     { return nil, nil }
func (a *account) give(string) error       { return nil }
func (a *account) checkReach(string) error { return nil }
func userKey() string                      { return "user" } // %TEMP% is each user's own already
func checkOwned(string) error              { return nil }
