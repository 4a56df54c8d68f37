package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Options of a client that logs in, and encrypts where an authority is named.
func login(asked request) ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(asked.Address)}
	if asked.Authority != "" {
		pem, err := os.ReadFile(asked.Authority)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", asked.Authority)
		}
		opts = append(opts, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}))
	}
	switch asked.Mechanism {
	case "PLAIN":
		return append(opts, kgo.SASL(plain.Auth{User: asked.User, Pass: asked.Password}.AsMechanism())), nil
	case "SCRAM-SHA-256":
		return append(opts, kgo.SASL(scram.Auth{User: asked.User, Pass: asked.Password}.AsSha256Mechanism())), nil
	case "SCRAM-SHA-512":
		return append(opts, kgo.SASL(scram.Auth{User: asked.User, Pass: asked.Password}.AsSha512Mechanism())), nil
	case "OAUTHBEARER":
		return append(opts, kgo.SASL(oauth.Auth{Token: asked.Password}.AsMechanism())), nil
	}
	return nil, fmt.Errorf("no such mechanism: %s", asked.Mechanism)
}

// Produces the values and reads them back with one client that logs in, in a group of the topic's name.
func playLoggedIn(ctx context.Context, asked request) ([][]byte, error) {
	opts, err := login(asked)
	if err != nil {
		return nil, err
	}
	opts = append(opts, kgo.AllowAutoTopicCreation(), kgo.ConsumerGroup(asked.Topic), kgo.ConsumeTopics(asked.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// A refused login ends a ping at once; a record would be sent again until its time is over.
	if err := client.Ping(ctx); err != nil {
		return nil, err
	}
	if err := client.ProduceSync(ctx, records(asked)...).FirstErr(); err != nil {
		return nil, err
	}
	values := [][]byte{}
	for len(values) < len(asked.Values) {
		fetched := client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		for _, record := range fetched.Records() {
			values = append(values, record.Value)
		}
	}
	return values, nil
}
