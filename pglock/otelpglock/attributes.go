package otelpglock

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/pglock/pglock-go/pglock"
)

// The keys of the attributes, which the package's documentation describes.
const (
	keyName       = attribute.Key("pglock.lock.name")
	keyGroup      = attribute.Key("pglock.group")
	keyOutcome    = attribute.Key("pglock.outcome")
	keyAttempts   = attribute.Key("pglock.attempts")
	keyToken      = attribute.Key("pglock.token")
	keyBlocker    = attribute.Key("pglock.blocker")
	keyHolder     = attribute.Key("pglock.holder")
	keyQueued     = attribute.Key("pglock.queued")
	keyAhead      = attribute.Key("pglock.ahead")
	keyHandedOff  = attribute.Key("pglock.handed_off")
	keyEnd        = attribute.Key("pglock.end")
	keyLossReason = attribute.Key("pglock.loss.reason")
	keyOperation  = attribute.Key("pglock.operation")
	keyKind       = attribute.Key("pglock.kind")
)

// errorTypes are the values of error.type, in the order in which they are looked for, so that a
// lost lease whose renewals failed counts as lost.
var errorTypes = []struct {
	err  error
	text string
}{
	{pglock.ErrLost, "lost"},
	{pglock.ErrClosed, "closed"},
	{pglock.ErrPrivilege, "privilege"},
	{pglock.ErrSchema, "schema"},
	{pglock.ErrUnavailable, "unavailable"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
}

// withErrorType appends error.type to attributes, unless err is nil.
func withErrorType(all []attribute.KeyValue, err error) []attribute.KeyValue {
	if err == nil {
		return all
	}
	for _, t := range errorTypes {
		if errors.Is(err, t.err) {
			return append(all, semconv.ErrorTypeKey.String(t.text))
		}
	}
	return append(all, semconv.ErrorTypeOther)
}
