import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.PersistenceAdapter;
import org.apache.activemq.store.jdbc.JDBCPersistenceAdapter;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import org.apache.activemq.store.kahadb.disk.journal.Journal.JournalDiskSyncStrategy;
import org.apache.commons.dbcp2.BasicDataSource;

/**
 * Runs ActiveMQ Classic until it is killed. Arguments: data directory, STOMP port, MQTT port, and, for its JDBC store
 * instead of KahaDB, the database's JDBC URL; user and password are then in PGUSER and PGPASSWORD.
 */
public final class Classic {
  private static final long MEBIBYTE = 1L << 20;

  private Classic() {}

  public static void main(String[] arguments) throws Exception {
    File data = new File(arguments[0]);
    PersistenceAdapter store = arguments.length > 3 ? jdbc(arguments[3]) : kahadb(data);

    BrokerService broker = new BrokerService();
    broker.setBrokerName("bench");
    broker.setDataDirectoryFile(data);
    broker.setPersistenceAdapter(store);
    // Neither serves the load, and both cost time on each message or connection.
    broker.setUseJmx(false);
    broker.setAdvisorySupport(false);
    // Large enough that flow control does not begin within a run.
    broker.getSystemUsage().getMemoryUsage().setLimit(512 * MEBIBYTE);
    broker.getSystemUsage().getStoreUsage().setLimit(20 * 1024 * MEBIBYTE);
    broker.addConnector("stomp+nio://127.0.0.1:" + arguments[1]);
    broker.addConnector("mqtt+nio://127.0.0.1:" + arguments[2]);
    broker.start();
    broker.waitUntilStopped();
  }

  private static PersistenceAdapter kahadb(File data) {
    KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
    store.setDirectory(new File(data, "kahadb"));
    // The default, said aloud: a send is confirmed after its journal write was synced.
    store.setJournalDiskSyncStrategy(JournalDiskSyncStrategy.ALWAYS.name());
    return store;
  }

  private static PersistenceAdapter jdbc(String url) throws Exception {
    BasicDataSource source = new BasicDataSource();
    source.setDriverClassName("org.postgresql.Driver");
    source.setUrl(url);
    source.setUsername(System.getenv("PGUSER"));
    source.setPassword(System.getenv("PGPASSWORD"));
    // As its documentation advises.
    source.setPoolPreparedStatements(true);
    source.setMaxTotal(20);
    JDBCPersistenceAdapter store = new JDBCPersistenceAdapter();
    store.setDataSource(source);
    return store;
  }
}
