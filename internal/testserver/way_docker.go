package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

const containerPort = "5432/tcp"

// startContainer runs the image in a container that listens on loopback, if the engine is on this machine.
func (c config) startContainer(ctx context.Context) (*running, error) {
	engine, err := findEngine(ctx)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	if err := engine.sweep(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err) // somebody else's mess is no reason to fail
	}
	image, err := engine.ensureImage(ctx, c.image, c.patience)
	if err != nil {
		return nil, err
	}
	self, err := process.Self()
	if err != nil {
		return nil, err
	}
	remove := func() error { return removeContainers(self) }
	server, err := engine.run(ctx, image, self)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	server.stop = remove
	return server, nil
}

// run starts a container of the image and waits until the server in it accepts connections. On failure the container
// may be left.
func (e *engine) run(ctx context.Context, image string, self process.ID) (*running, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	password := rand.Text()
	request := testcontainers.ContainerRequest{
		Image:        image,
		Env:          map[string]string{"POSTGRES_USER": superuser, "POSTGRES_PASSWORD": password, "POSTGRES_DB": database},
		Cmd:          containerCommand(),
		ExposedPorts: []string{containerPort},
		Labels:       containerLabels(self),
	}
	if os.Getenv(hostOverride) == loopback {
		request.HostConfigModifier = func(host *container.HostConfig) {
			host.PortBindings = network.PortMap{
				network.MustParsePort(containerPort): {{HostIP: netip.MustParseAddr(loopback)}},
			}
		}
	}
	box, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		ContainerRequest: request,
		Started:          true,
	})
	if err != nil {
		return nil, fmt.Errorf("testserver: %s: %w", image, err)
	}
	address, err := awaitContainer(ctx, box, password)
	if err != nil {
		return nil, fmt.Errorf("testserver: %s: %w: %s", image, err, containerSaid(box))
	}
	return &running{Shared: Shared{URL: serverURL(address, password), Detail: image}}, nil
}

// containerCommand makes the server in a container as fast as a local one.
func containerCommand() []string {
	command := []string{"postgres"}
	for _, settings := range []map[string]string{fastSettings, sharedSettings} {
		for name, value := range settings {
			command = append(command, "-c", name+"="+value)
		}
	}
	return command
}

// awaitContainer returns the address at which the server in the container answers. The images' log lines are no help:
// an official image says "ready" also before it restarts its server for good.
func awaitContainer(ctx context.Context, box testcontainers.Container, password string) (string, error) {
	for {
		address, failed := reachContainer(ctx, box, password)
		if failed == nil {
			return address, nil
		}
		// A container that ended has no ports any more: what matters is how it ended.
		if state, err := box.State(ctx); err == nil && !state.Running {
			return "", fmt.Errorf("the container ended with status %d", state.ExitCode)
		}
		retry := time.NewTimer(20 * time.Millisecond)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return "", fmt.Errorf("no answer: %w; if the engine's ports are elsewhere, set %s",
				errors.Join(ctx.Err(), failed), hostOverride)
		}
	}
}

// reachContainer tries each address of the container once, and returns the one at which its server answers. That is a
// port of the machine with the engine; or, when the tests themselves run in a container beside this one, the
// container's own address.
func reachContainer(ctx context.Context, box testcontainers.Container, password string) (string, error) {
	addresses, err := containerAddresses(ctx, box)
	if err != nil {
		return "", err
	}
	var failed error
	for _, address := range addresses {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		err := ping(attempt, serverURL(address, password))
		cancel()
		if err == nil {
			return address, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", address, err))
	}
	return "", failed
}

func containerAddresses(ctx context.Context, box testcontainers.Container) ([]string, error) {
	host, err := box.Host(ctx)
	if err != nil {
		return nil, err
	}
	port, err := box.MappedPort(ctx, containerPort)
	if err != nil {
		return nil, err
	}
	addresses := []string{net.JoinHostPort(host, port.Port())}
	if ip, err := box.ContainerIP(ctx); err == nil && ip != "" {
		inner, _, _ := strings.Cut(containerPort, "/")
		addresses = append(addresses, net.JoinHostPort(ip, inner))
	}
	return addresses, nil
}

func containerSaid(box testcontainers.Container) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	logs, err := box.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	return lastLines(readAll(logs))
}
