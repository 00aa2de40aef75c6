package link

import (
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// errUnconfirmed means that the primary committed the statement, but the wait for its synchronous
// standby was canceled. The answer counts as lost: a repeated request finds the first one's effect
// and waits for the standby again.
var errUnconfirmed = errs.Errorf("%w: the wait for a synchronous standby was canceled: the change may be on this server alone", errs.ErrUnavailable)

// unconfirmedKey marks a connection with such a canceled wait, in its custom data.
const unconfirmedKey = "pglock: unconfirmed"

// noticeUnconfirmed returns a notice handler that marks the connection and then calls next. When a
// wait for a synchronous standby is canceled (by a client whose context ends, or by
// pg_cancel_backend), the server reports success and a warning. The warning's code and text are
// not specific. Its routine is.
func noticeUnconfirmed(next pgconn.NoticeHandler) pgconn.NoticeHandler {
	return func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" {
			conn.CustomData()[unconfirmedKey] = true
		}
		if next != nil {
			next(conn, n)
		}
	}
}

// confirmed returns err, or errUnconfirmed if the statement succeeded but its wait for a standby
// was canceled. The commit's notices have been read: they precede ReadyForQuery.
func confirmed(conn *pgconn.PgConn, err error) error {
	data := conn.CustomData()
	if _, canceled := data[unconfirmedKey]; !canceled {
		return err
	}
	delete(data, unconfirmedKey)
	if err == nil {
		return errUnconfirmed
	}
	return err
}
