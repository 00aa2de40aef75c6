package leasetable

// closedChannel is closed. It is shared by all leases.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// releaseRequest is a request to the holder of a lease to release it. The lease's mu guards it.
type releaseRequest struct {
	made   bool
	reason string        // of the first request
	notify chan struct{} // nil until ReleaseRequested is called before a request
}

// ReleaseRequested returns a channel that is closed when the holder should release the lock. The
// lease is still held and renewed: the holder decides when to stop, and calls Release.
// ReleaseReason then returns why.
//
// Requests come from [Client.RequestRelease]. A request arrives with the next renewal, or at once by
// a notification: the first call opens the client's listening connection. A lease that ends without
// a request does not close the channel: wait for Done as well. The channel of a joined lease is that
// of the lease that holds the grant.
func (l *Lease) ReleaseRequested() <-chan struct{} {
	l = l.root()
	l.mu.Lock()
	r := &l.request
	if r.made && r.notify == nil {
		l.mu.Unlock()
		return closedChannel
	}
	first := r.notify == nil
	if first {
		r.notify = make(chan struct{})
	}
	notify := r.notify
	l.mu.Unlock()
	if first {
		l.client.startListener()
	}
	return notify
}

// ReleaseReason returns the reason of the first request to release the lock. It is empty if there
// was no request, or a request without a reason.
func (l *Lease) ReleaseReason() string {
	l = l.root()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.request.reason
}

// requestRelease tells the holder to release the lock. It reports whether this is the first request
// to a lease that is held. Later requests change nothing.
func (l *Lease) requestRelease(reason string) bool {
	l.mu.Lock()
	r := &l.request
	first, all := l.ended == nil && !r.made, l.all
	if first {
		r.made, r.reason = true, reason
		if r.notify != nil {
			close(r.notify)
		}
	}
	l.mu.Unlock()
	if first && all != nil {
		all.requestRelease(reason)
	}
	return first
}
