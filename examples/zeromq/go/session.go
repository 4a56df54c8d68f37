package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	kindHello     = 1
	kindOpen      = 3
	kindRequest   = 5
	kindResponse  = 6
	kindCredit    = 7
	kindHeartbeat = 8
	kindClose     = 9
	kindError     = 10
	kindSubscribe = 16
	kindPush      = 18

	headerBytes  = 24
	tokenBytes   = 16
	flagMore     = 1
	window       = 4 << 20
	patience     = 30 * time.Second
	heartbeatGap = 2 * time.Second
	subscription = 1
)

// message is one that the broker has sent.
type message struct {
	kind byte
	more bool
	mark uint64
	body []byte
}

// session is one with broker 0.
//
// zmq4.NewDealer always sets a routing id, which the broker refuses. So a session is one connection of that package,
// opened without an id. It never reconnects, and a session could not survive that anyway.
type session struct {
	connection    *zmq4.Conn
	sending       sync.Mutex
	token         [tokenBytes]byte
	correlationID int32
	heartbeatMark atomic.Uint64 // of the last heartbeat that has arrived
}

func dial(endpoint string) (*zmq4.Conn, error) {
	network, address, found := strings.Cut(endpoint, "://")
	if !found {
		return nil, fmt.Errorf("%s is no endpoint", endpoint)
	}
	if network == "ipc" {
		network = "unix"
	}
	raw, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return nil, err
	}
	return zmq4.Open(raw, null.Security(), zmq4.Dealer, nil, false, nil)
}

func openSession(endpoint string) (*session, error) {
	acceptor, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	s := &session{connection: acceptor}
	hello := appendString([]byte{1, 0xff, 0xff, 0xff, 0xff}, "example")
	welcome, err := s.askOnce(kindHello, hello)
	acceptor.Close()
	if err != nil {
		return nil, err
	}
	broker := welcome[1:5]
	length := int(binary.BigEndian.Uint16(welcome[5:]))
	if s.connection, err = dial(string(welcome[7 : 7+length])); err != nil {
		return nil, err
	}
	open := binary.BigEndian.AppendUint64(append([]byte{}, broker...), window)
	opened, err := s.askOnce(kindOpen, appendString(open, "example"))
	if err != nil {
		return nil, err
	}
	copy(s.token[:], opened)
	return s, nil
}

func (s *session) askOnce(kind byte, body []byte) ([]byte, error) {
	if err := s.send(kind, body); err != nil {
		return nil, err
	}
	answer, err := s.receive()
	return answer.body, err
}

// send may be called from several goroutines.
func (s *session) send(kind byte, frames ...[]byte) error {
	header := append([]byte{0x4b, 0x5a, 1, kind, 0, 0, 0, 0}, s.token[:]...)
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.connection.SendMsg(zmq4.NewMsgFrom(append([][]byte{header}, frames...)...))
}

// receive waits for the next message. The caller acknowledges what it has consumed.
func (s *session) receive() (message, error) {
	received, err := s.connection.RecvMsg()
	if err != nil {
		return message{}, err
	}
	if len(received.Frames) == 0 || len(received.Frames[0]) < headerBytes {
		return message{}, errors.New("a message without a header")
	}
	header := received.Frames[0]
	body := []byte{}
	for _, frame := range received.Frames[1:] {
		body = append(body, frame...)
	}
	if header[3] == kindError && len(body) >= 4 {
		return message{}, fmt.Errorf("error %d: %s", binary.BigEndian.Uint16(body), body[4:])
	}
	next := message{
		kind: header[3],
		more: binary.BigEndian.Uint32(header[4:])&flagMore != 0,
		mark: binary.BigEndian.Uint64(header[8:]),
		body: body,
	}
	if next.kind == kindHeartbeat {
		s.heartbeatMark.Store(next.mark)
	}
	return next, nil
}

func (s *session) acknowledge(consumed message) error {
	if consumed.mark == 0 || consumed.kind == kindHeartbeat {
		return nil
	}
	credit := binary.BigEndian.AppendUint64(nil, consumed.mark)
	return s.send(kindCredit, binary.BigEndian.AppendUint64(credit, window))
}

// ask sends a Kafka request, waits for its response, and returns the response's body.
func (s *session) ask(apiKey, version int16, frames ...[]byte) ([]byte, error) {
	s.correlationID++
	header := appendInt16(appendInt16(nil, apiKey), version)
	header = appendString(appendInt32(header, s.correlationID), "example")
	if err := s.send(kindRequest, append([][]byte{header}, frames...)...); err != nil {
		return nil, err
	}
	response, err := s.join(kindResponse)
	if err != nil {
		return nil, err
	}
	if len(response) < 4 || int32(binary.BigEndian.Uint32(response)) != s.correlationID {
		return nil, errors.New("a response to another request")
	}
	return response[4:], nil
}

// join returns the bodies of the next messages of this kind, up to the one without the flag MORE.
func (s *session) join(kind byte) ([]byte, error) {
	joined := []byte{}
	for {
		next, err := s.receive()
		if err != nil {
			return nil, err
		}
		if next.kind == kind {
			joined = append(joined, next.body...)
		}
		if err := s.acknowledge(next); err != nil {
			return nil, err
		}
		if next.kind == kind && !next.more {
			return joined, nil
		}
	}
}

// subscribe asks for the records of partition 0 from `offset` on.
func (s *session) subscribe(topic string, offset int64) error {
	body := binary.BigEndian.AppendUint64(nil, subscription)
	body = appendInt64(appendInt32(body, 0), offset)
	body = appendInt32(append(body, 0), 1<<20)
	return s.send(kindSubscribe, appendString(body, topic))
}

// beat sends a heartbeat every two seconds until the session is closed. Each gives back the mark of the last that came.
func (s *session) beat() {
	for s.send(kindHeartbeat, binary.BigEndian.AppendUint64(nil, s.heartbeatMark.Load())) == nil {
		time.Sleep(heartbeatGap)
	}
}

func (s *session) close() error {
	if err := s.send(kindClose); err != nil {
		return err
	}
	return s.connection.Close()
}
