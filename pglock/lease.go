package pglock

import (
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// Lease is one grant of one lock: see [leasetable.Lease].
type Lease = leasetable.Lease

// Lock is what Get tells about a lock: see [leasetable.Lock].
type Lock = leasetable.Lock

// Token is a grant's fencing token: see [fencing.Token].
type Token = fencing.Token

// Fence names one grant of one lock: see [fencing.Fence].
type Fence = fencing.Fence
