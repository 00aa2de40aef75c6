package pglock

import (
	"log/slog"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// Option configures a Client. Each LeaseOption is an Option too: given to Open, it sets the default
// of that client's leases.
type Option = leasetable.Option

// LeaseOption configures one lease.
type LeaseOption = leasetable.LeaseOption

// WithSchema names the schema that holds the tables. Default "pglock".
func WithSchema(name string) Option { return leasetable.WithSchema(name) }

// WithMaxConns limits the client's own connections, not counting the listener: 2 or more. Default
// 4.
func WithMaxConns(n int) Option { return leasetable.WithMaxConns(n) }

// WithLogger logs failed renewals, lost leases and failed clean-ups at Warn, and waits, grants and
// releases at Debug, one line each. Nil means no logger. Default: slog.Default(), as it is at the
// time, at Warn.
func WithLogger(l *slog.Logger) Option { return leasetable.WithLogger(l) }

// WithPollOnly makes waiters poll instead of using LISTEN, for poolers in transaction mode and
// servers without notifications. A waiter then gets the lock up to 400 ms late. Default: listen.
func WithPollOnly() Option { return leasetable.WithPollOnly() }

// WithListener sets the connection string of the listener, which must lead to the same database
// past a pooler. Default: the pool's.
func WithListener(connString string) Option { return leasetable.WithListener(connString) }

// WithRetention deletes the rows of names that had no holder for the time d, a minute or more.
// Default 24 h.
func WithRetention(d time.Duration) Option { return leasetable.WithRetention(d) }

// WithoutPruning keeps the rows of all names until Prune is called.
func WithoutPruning() Option { return leasetable.WithoutPruning() }

// WithWait bounds how long Acquire and Do wait for the lock. It bounds neither the lease nor the
// work. When the time is over, the error is a *WaitError that wraps ErrNotAcquired and ErrTimeout.
// The first attempt has a second even if d is shorter. With 0, Acquire is TryAcquire, and Do is
// TryDo. Default: until ctx ends.
func WithWait(d time.Duration) LeaseOption { return leasetable.WithWait(d) }

// WithJoin makes Acquire, TryAcquire, Do and TryDo join the lease of that name which ctx carries, if
// it is held. Otherwise they acquire the lock as usual. Without this option they return a
// *HeldError if ctx carries the lease.
//
// A joined lease is the same grant, with the same token and deadline. TTL, holder, labels and wait
// are those of the outer lease, whatever the other options say. Release ends the joined lease only:
// the lock stays held until the outer lease is released. Extend extends both. When the outer lease
// is lost or released, the joined lease ends with it, and Release returns the reason. Leases that
// join one lease do not exclude each other.
func WithJoin() LeaseOption { return leasetable.WithJoin() }

// WithTTL sets how long a grant lasts without renewal, 10 ms to 10 years. It is how long others
// wait after a holder's death. Default 30 s.
func WithTTL(d time.Duration) LeaseOption { return leasetable.WithTTL(d) }

// WithSafetyMargin sets how long before the server's expiry the holder stops trusting the lease. It
// must be shorter than the TTL. Default: a tenth of the TTL, at most 5 s.
func WithSafetyMargin(d time.Duration) LeaseOption { return leasetable.WithSafetyMargin(d) }

// WithRenewEvery sets the longest time between renewals. It must be shorter than the TTL less the
// safety margin. Default: a third of the TTL, or half of the TTL less the margin if that is
// shorter.
func WithRenewEvery(d time.Duration) LeaseOption { return leasetable.WithRenewEvery(d) }

// WithoutRenewal lets the lease expire after its TTL unless Extend is called. Default: renew.
func WithoutRenewal() LeaseOption { return leasetable.WithoutRenewal() }

// WithHolder sets the holder's name, as others see it: 1 to 512 bytes of UTF-8 without NUL.
// Default: host name, process id and a random part.
func WithHolder(name string) LeaseOption { return leasetable.WithHolder(name) }

// WithLabels stores labels with the grant: 16 KiB or less as JSON. Default none.
func WithLabels(labels map[string]string) LeaseOption { return leasetable.WithLabels(labels) }

// WithLabel adds a label to those of the options before it. See WithLabels.
func WithLabel(key, value string) LeaseOption { return leasetable.WithLabel(key, value) }

// WithAnnounce notifies the callers of Watch of the grant, after it was made. Without it they usually
// see a grant to a new holder within a second. Default: no notification.
func WithAnnounce() LeaseOption { return leasetable.WithAnnounce() }

// WithMaxHold limits how long the lease can be held: d after the grant, renewals stop and
// ReleaseRequested is closed. The holder has the rest of its lease to finish and release it, up to
// one TTL. Then the lease is lost, with an error that wraps ErrMaxHold. Extend does not go further.
// Default, and 0: no limit.
func WithMaxHold(d time.Duration) LeaseOption { return leasetable.WithMaxHold(d) }

// WithMinHold keeps the lock from others until d after the grant, by the server's clock, even if it
// is released before, or the holder or the server dies. So a quick job does not run again on another
// replica whose clock is behind. Release returns at once, and the lease is over for its holder.
// Default 0.
func WithMinHold(d time.Duration) LeaseOption { return leasetable.WithMinHold(d) }

// WithLockDelay keeps the lock from others for d after a lease that ended without a release: its
// holder died, was suspended or was cut off. A release frees the lock at once. Default 0.
func WithLockDelay(d time.Duration) LeaseOption { return leasetable.WithLockDelay(d) }

// WithFailOpen lets the work run without the lock while the database is away: Do, TryDo, Acquire and
// TryAcquire then use an unlocked lease instead of returning ErrUnavailable. It does not exclude
// others, every guard and every protected table refuses it, and it is logged at Warn. Use it for
// work that is better done twice than not at all.
//
// The database is away when it can't be reached or does not answer: for 30 s, for two attempts of
// TryDo and TryAcquire (10 s at most), or when the time of WithWait, a second or more, is over. Every
// other failure is returned: a held lock, an invalid option, missing tables or rights, a rejected
// role. It is an option of a call, not of Open. Default: no work without the lock. See
// [leasetable.WithFailOpen].
func WithFailOpen() LeaseOption { return leasetable.WithFailOpen() }

// WithBarging lets a caller overtake the waiters in the queue. Default: first come, first served.
func WithBarging() LeaseOption { return leasetable.WithBarging() }
