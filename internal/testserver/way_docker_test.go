package testserver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

// endedContainer is one that ended before anybody asked for its port: the engine has withdrawn it by then.
type endedContainer struct{ testcontainers.Container }

func (endedContainer) Host(context.Context) (string, error) { return loopback, nil }

func (endedContainer) MappedPort(context.Context, string) (network.Port, error) {
	return network.Port{}, errors.New("port not found")
}

func (endedContainer) State(context.Context) (*container.State, error) {
	return &container.State{ExitCode: 3}, nil
}

func TestAContainerThatEndedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := awaitContainer(t.Context(), endedContainer{}, "")
	if err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("got %v, want how the container ended", err)
	}
}
