package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

// endedContainer ended before anybody asked for its port. The engine has withdrawn the port by then.
type endedContainer struct{ testcontainers.Container }

func (endedContainer) MappedPort(context.Context, string) (network.Port, error) {
	return network.Port{}, errors.New("port not found")
}

func (endedContainer) State(context.Context) (*container.State, error) {
	return &container.State{ExitCode: 3}, nil
}

func (endedContainer) Logs(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("it is broken")), nil
}

func TestAContainerThatEndedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := awaitContainer(t.Context(), endedContainer{})
	if err == nil || !strings.Contains(err.Error(), "status 3: it is broken") {
		t.Errorf("got %v, want how the container ended", err)
	}
}
