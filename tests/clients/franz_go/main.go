// Transactions and logins of franz-go: one JSON object a line on standard input, one answer a line on standard output. Values
// travel as base64. A producer is a client without a group. A session is a GroupTransactSession, which consumes,
// produces and commits its offsets in one transaction.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 60 * time.Second

// What the tests know by their numbers (client.py, driver_process.py).
const (
	noCode    = -1
	timedOut  = -2
	wholeLine = 64 << 20
)

type request struct {
	Op        string
	Address   string
	Producer  int
	Session   int
	ID        string
	Group     string
	Topic     string
	Partition int32
	Values    [][]byte
	Until     []byte
	Committed bool
	Commit    bool
	Most      int
	TimeoutMs int
	SessionMs int
	Server    bool
	Authority string
	Mechanism string
	User      string
	Password  string
}

type refusal struct {
	Code    int16  `json:"code"`
	Message string `json:"message"`
}

type answer struct {
	OK    any      `json:"ok"`
	Error *refusal `json:"error,omitempty"`
}

type driver struct {
	address   string
	producers map[int]*kgo.Client
	sessions  map[int]*kgo.GroupTransactSession
}

func main() {
	d := &driver{producers: map[int]*kgo.Client{}, sessions: map[int]*kgo.GroupTransactSession{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, wholeLine)
	output := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		err := json.Unmarshal(lines.Bytes(), &asked)
		var told any
		if err == nil {
			told, err = d.perform(asked)
		}
		done := answer{OK: told}
		if err != nil {
			done = answer{Error: &refusal{code(err), err.Error()}}
		}
		if err := output.Encode(done); err != nil {
			panic(err)
		}
	}
}

func code(err error) int16 {
	var refused *kerr.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return timedOut
	}
	return noCode
}

func (d *driver) perform(asked request) (any, error) {
	limit := patience
	if asked.TimeoutMs > 0 && (asked.Op == "read" || asked.Op == "poll") {
		limit = time.Duration(asked.TimeoutMs) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	producer, session := d.producers[asked.Producer], d.sessions[asked.Session]
	switch asked.Op {
	case "connect":
		d.address = asked.Address
		return nil, nil
	case "producer":
		made, err := kgo.NewClient(d.producing(asked)...)
		d.producers[asked.Producer] = made
		return nil, err
	case "init":
		_, _, err := producer.ProducerID(ctx)
		return nil, err
	case "begin":
		return nil, producer.BeginTransaction()
	case "send":
		return nil, producer.ProduceSync(ctx, records(asked)...).FirstErr()
	case "commit":
		if err := producer.Flush(ctx); err != nil {
			return nil, err
		}
		return nil, producer.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		if err := producer.AbortBufferedRecords(ctx); err != nil {
			return nil, err
		}
		return nil, producer.EndTransaction(ctx, kgo.TryAbort)
	case "closeProducer":
		producer.Close()
		delete(d.producers, asked.Producer)
		return nil, nil
	case "read":
		return d.read(ctx, asked)
	case "playLoggedIn":
		return playLoggedIn(ctx, asked)

	case "session":
		made, err := kgo.NewGroupTransactSession(append(d.producing(asked), consuming(asked)...)...)
		d.sessions[asked.Session] = made
		return nil, err
	case "initSession":
		_, _, err := session.Client().ProducerID(ctx)
		return nil, err
	case "poll":
		return poll(ctx, session, asked.Most)
	case "beginSession":
		return nil, session.Begin()
	case "sendOfSession":
		return nil, session.ProduceSync(ctx, records(asked)...).FirstErr()
	case "endSession":
		return session.End(ctx, kgo.TransactionEndTry(asked.Commit))
	case "closeSession":
		session.Close()
		delete(d.sessions, asked.Session)
		return nil, nil
	}
	return nil, fmt.Errorf("no such operation: %s", asked.Op)
}

func (d *driver) producing(asked request) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(d.address),
		kgo.TransactionalID(asked.ID),
		kgo.TransactionTimeout(time.Duration(asked.TimeoutMs) * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(patience),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // a record is as large as the test made it
	}
}

func consuming(asked request) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if asked.Server {
		return append(opts, kgo.ServerSideBalancer())
	}
	session := time.Duration(asked.SessionMs) * time.Millisecond
	return append(opts, kgo.SessionTimeout(session), kgo.RebalanceTimeout(session), kgo.HeartbeatInterval(session/10))
}

func records(asked request) []*kgo.Record {
	made := make([]*kgo.Record, len(asked.Values))
	for number, value := range asked.Values {
		made[number] = &kgo.Record{Topic: asked.Topic, Partition: asked.Partition, Value: value}
	}
	return made
}

// What came until the context's end, or what was asked for.
func (d *driver) read(ctx context.Context, asked request) ([][]byte, error) {
	isolation := kgo.ReadUncommitted()
	if asked.Committed {
		isolation = kgo.ReadCommitted()
	}
	from := map[string]map[int32]kgo.Offset{asked.Topic: {asked.Partition: kgo.NewOffset().At(0)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(d.address), kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(isolation), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	values := [][]byte{}
	for {
		fetched := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return values, nil
		}
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		for _, record := range fetched.Records() {
			values = append(values, record.Value)
			if string(record.Value) == string(asked.Until) {
				return values, nil
			}
		}
	}
}

type polled struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     []byte `json:"value"`
}

// Nothing, when nothing comes in time.
func poll(ctx context.Context, session *kgo.GroupTransactSession, most int) ([]polled, error) {
	fetched := session.PollRecords(ctx, most)
	came := []polled{}
	for _, record := range fetched.Records() {
		came = append(came, polled{record.Partition, record.Offset, record.Value})
	}
	if err := fetched.Err(); err != nil && ctx.Err() == nil {
		return nil, err
	}
	return came, nil
}
