//! A folder with live data, open: to read, or to write as the only process that does.
//!
//! A write goes: ids are looked up, a record is appended to the log, synced where durability asks for it, applied,
//! acknowledged. One sync serves all that wait for it. What the log holds is folded into new files now and then
//! (checkpoint.zig), so it stays short. A sync that fails leaves the writer poisoned: nothing is known then of what the
//! device holds, so it writes no more until it is opened again and has read what is there.
//!
//! Opening takes three calls, since ids are in the caller's files: `open` says which parts there are, `attach` brings the
//! ids of each, `begin` reads tombstones and log.
const std = @import("std");
const base = @import("base");
const checkpoints = @import("checkpoint.zig");
const calls = @import("call.zig");
const columns = @import("columns.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const log_file = @import("log.zig");
const looking = @import("look.zig");
const BitSet = base.BitSet;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const delta_room = @import("delta.zig");
const linking = @import("link.zig");
const folding = @import("fold.zig");
const replaying = @import("replay.zig");
const requests_room = @import("requests.zig");
const rows_payload = @import("rows.zig");
const scan = @import("scan.zig");
const writing = @import("write.zig");
const view_room = @import("view.zig");
const Ids = find.Ids;
const file_error = diagnostics.file_error;

pub const Durability = enum(u8) {
    /// A write returns once it is on the device.
    sync = 0,
    /// It is there a tenth of a second later; a process that is killed loses nothing.
    interval = 1,
    /// When the system gets to it, or at a checkpoint, a flush or the end.
    process = 2,
};

pub const Options = struct {
    writable: bool = false,
    durability: Durability = .sync,
    /// A log longer than this is folded into tombstones; 0: four MiB, and at least half of what the tombstones take.
    checkpoint_bytes: u64 = 0,
    /// What the delta may take; a write that would take more is refused: Done.outcome.
    delta_bytes: u64 = 64 << 20,
    /// Decides uuid and salts; the system's randomness unless a test says otherwise.
    seed: ?u64 = null,
};

/// What the files of the parts say of an index. Its root keeps it from the first write on, since parts come and go.
pub const Built = struct {
    kind: ?rows_payload.Kind = null,
    /// The number behind that of the last row, where ids are such.
    next_row: u64 = 0,
    schema: ?[]const u8 = null,
};

/// What became of a write.
pub const Outcome = enum(u8) {
    done = 0,
    /// A row with the id of `row` is there: nothing was done.
    duplicate = 1,
    /// The delta has no room: nothing was done.
    full = 2,
    /// Rows have other numbers by now, or are there no more: nothing was done.
    stale = 3,
    /// A call with this name was done before; this is what became of it.
    repeated = 4,
    /// The id of `row` is no number that this index ever gave: nothing was done.
    no_row_number = 5,
};

pub const Done = struct {
    outcome: Outcome = .done,
    /// Rows that were there and are gone; of an insert those that are new.
    rows: u64 = 0,
    /// Of those inserted: took the place of one that was there.
    replaced: u64 = 0,
    /// The id of the first row where the index numbers them, or the row that an outcome is about; where there was no room the
    /// bytes that the call takes.
    row: u64 = 0,
    /// The change that did it, or the last one before where nothing was to be done.
    sequence: u64 = 0,
    durable: bool = false,
    /// What a writer asks after each call (Info).
    layout: u64 = 0,
    row_count: u64 = 0,
    delta_bytes: u64 = 0,
    delta_bytes_max: u64 = 0,
};

pub const Info = struct {
    is_live: bool,
    is_writable: bool,
    generation: u64,
    sequence: u64,
    layout: u64,
    /// Of parts.
    rows: u64,
    dead: u64,
    parts: u64,
    delta_rows: u64,
    delta_dead: u64,
    delta_bytes: u64,
    delta_bytes_max: u64,
    kind: ?rows_payload.Kind,
    next_row: u64,
    log_bytes: u64,
    /// Bytes of it that are known to be on the device.
    log_synced_bytes: u64,
    poisoned: bool,
};

/// A row of a part, or of the delta (delta.part_number).
pub const Row = struct { part: u32, vertex: u32 };

pub fn Live(comptime Store: type) type {
    return struct {
        const Self = @This();

        pub const Part = struct {
            path: []const u8,
            uuid: []const u8,
            n: u64,
            ids: ?Ids = null,
            finder: ?find.Finder = null,
            finder_map: ?Store.Map = null,
            finder_owned: ?[]align(4) u8 = null,
            /// Rows that are dead: what searches leave out.
            dead: BitSet,
            dead_count: u64 = 0,
            /// Those and the ones whose record waits for its sync. A writer's; readers have the same as `dead`.
            gone: BitSet,
            /// The file that holds tombstones of this part, and how many.
            file: ?[]const u8 = null,
            file_count: u64 = 0,

            pub fn deinit(self: *Part, live: *Self) void {
                const allocator = live.allocator;
                allocator.free(self.path);
                allocator.free(self.uuid);
                if (self.file) |name| allocator.free(name);
                if (self.finder_map) |bytes| live.store.unmap(bytes);
                if (self.finder_owned) |bytes| allocator.free(bytes);
                self.dead.deinit(allocator);
                if (live.options.writable) self.gone.deinit(allocator);
            }
        };

        /// A record that waits for its sync: rows that it takes away, and the records of the delta once it is seen.
        const Waiting = struct { sequence: u64, rows: []Row, records: u32 };

        allocator: std.mem.Allocator,
        store: *Store,
        options: Options,
        prng: base.Prng,
        /// A writer's, also while it makes a new root.
        mutex: std.Thread.Mutex = .{},
        /// What views copy changes under this as well, and it is held for no sync: no search waits for the device. Taken after
        /// `mutex` where both are.
        seen: std.Thread.Mutex = .{},
        /// A sync has ended, or the writer was poisoned.
        changed: std.Thread.Condition = .{},

        /// False: an index without live.json, as `velo.build` leaves it.
        is_live: bool = false,
        begun: bool = false,
        uuid: [32]u8 = @splat('0'),
        dim: u32 = 0,
        metric: []const u8 = "",
        dtype: scan.Dtype = .f32,
        /// What ids are, as far as a row or a part has told.
        kind: ?rows_payload.Kind = null,
        /// Columns of the metadata, as whoever made the folder or added to them wrote them down.
        schema: ?[]const u8 = null,
        /// Changes with it.
        schema_version: u64 = 1,
        /// Columns were added: an older velo must not read it.
        has_columns: bool = false,
        /// The uuid of the index that the folder was before its first write.
        built: ?[]const u8 = null,
        /// Rows came since it was built: an older velo must not read it.
        has_rows: bool = false,
        requests: requests_room.Requests = .{},
        generation: u64 = 0,
        next_row: u64 = 0,
        /// Below it, and of rows that are still to come: nobody was told them.
        reserved: std.ArrayList(calls.Numbers) = .empty,
        next_file: u64 = 1,
        parts: std.ArrayList(Part) = .empty,
        delta: *delta_room.Delta,
        /// Changes with every fold: rows have other numbers then.
        layout: u64 = 1,
        /// Of the delta's rows.
        delta_layout: u64 = 1,
        /// A reader found other parts than it has open.
        moved: bool = false,
        /// Named by the root that was read, and until the first write not there.
        log_name: ?[]const u8 = null,
        log: ?Store.File = null,
        log_header: log_file.Header = undefined,
        /// Where the records begin that are changes: behind what was carried over.
        log_begin: u64 = 0,
        position: log_file.Position = undefined,
        /// The change that the tombstone files hold.
        root_sequence: u64 = 0,
        sequence: u64 = 0,
        /// The last change that views show.
        shown_sequence: u64 = 0,
        /// Up to here changes and bytes are on the device.
        synced_sequence: u64 = 0,
        synced_offset: u64 = 0,
        last_is_promise: bool = false,
        syncing: bool = false,
        poisoned: bool = false,
        waiting: std.ArrayList(Waiting) = .empty,
        checkpoint_at: u64 = 0,

        // ---- opening ----

        pub fn open(allocator: std.mem.Allocator, store: *Store, options: Options, diagnostic: *Diagnostic) Error!Self {
            if (options.writable and !(store.lock_for_writing() catch |err| return file_error(diagnostic, ".", "lock", err))) {
                diagnostic.say("another process writes to this index", .{});
                return error.Busy;
            }
            var self: Self = .{
                .allocator = allocator,
                .store = store,
                .options = options,
                .prng = .init(options.seed orelse std.crypto.random.int(u64)),
                .delta = try .create(allocator),
            };
            errdefer self.deinit();
            try looking.read_root(&self, diagnostic);
            return self;
        }

        /// Closes the log as it is. A writer calls `finish` before.
        pub fn deinit(self: *Self) void {
            if (self.log) |file| self.store.close(file);
            self.log = null;
            self.forget_parts();
            self.parts.deinit(self.allocator);
            self.delta.release();
            self.requests.deinit(self.allocator);
            self.reserved.deinit(self.allocator);
            if (self.schema) |text| self.allocator.free(text);
            self.schema = null;
            if (self.built) |text| self.allocator.free(text);
            self.built = null;
            for (self.waiting.items) |one| self.allocator.free(one.rows);
            self.waiting.deinit(self.allocator);
            if (self.log_name) |name| self.allocator.free(name);
            self.log_name = null;
            self.allocator.free(self.metric);
            self.metric = "";
        }

        pub fn forget_parts(self: *Self) void {
            for (self.parts.items) |*part| part.deinit(self);
            self.parts.clearRetainingCapacity();
        }

        pub fn shape(self: *const Self) scan.Shape {
            return .{ .dim = self.dim, .metric = std.meta.stringToEnum(scan.Metric, self.metric) orelse .l2, .dtype = self.dtype };
        }

        pub fn add_part(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!void {
            try self.parts.ensureUnusedCapacity(self.allocator, 1);
            self.parts.appendAssumeCapacity(try self.new_part(path, uuid, n, file));
        }

        pub fn new_part(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!Part {
            const allocator = self.allocator;
            var dead = try BitSet.init(allocator, @intCast(n));
            errdefer dead.deinit(allocator);
            var gone = if (self.options.writable) try BitSet.init(allocator, @intCast(n)) else dead;
            errdefer if (self.options.writable) gone.deinit(allocator);
            const path_copy = try allocator.dupe(u8, path);
            errdefer allocator.free(path_copy);
            const uuid_copy = try allocator.dupe(u8, uuid);
            errdefer allocator.free(uuid_copy);
            const file_copy = if (file) |name| try allocator.dupe(u8, name) else null;
            return .{ .path = path_copy, .uuid = uuid_copy, .n = n, .dead = dead, .gone = gone, .file = file_copy };
        }

        /// What the columns are from now on; nothing changes where they are that already.
        pub fn take_schema(self: *Self, text: []const u8) error{OutOfMemory}!void {
            if (self.schema) |before| if (std.mem.eql(u8, before, text)) return;
            const copy = try self.allocator.dupe(u8, text);
            if (self.schema) |before| self.allocator.free(before);
            self.schema = copy;
            self.schema_version += 1;
        }

        /// The ids of a part, in the order of its vertices; they are borrowed and must outlive this.
        pub fn attach(self: *Self, part: usize, ids: Ids, diagnostic: *Diagnostic) Error!void {
            const one = &self.parts.items[part];
            if (ids.len() != one.n or !ids.is_whole()) return diagnostics.damaged(diagnostic, "ids.arrow", "does not fit its index", .{});
            one.ids = ids;
        }

        /// Reads what there is. A writer leaves no torn end behind: it goes into a file of its own and then out of the log.
        pub fn begin(self: *Self, built: Built, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            for (self.parts.items) |part| std.debug.assert(part.ids != null);
            if (self.schema == null) if (built.schema) |text| try self.take_schema(text);
            if (self.kind == null) {
                self.kind = built.kind;
                self.next_row = @max(self.next_row, built.next_row);
            }
            if (self.is_live and !self.options.writable) {
                self.begun = true;
                errdefer self.begun = false;
                _ = try looking.look(self, true, diagnostic);
            } else if (self.is_live) {
                const end = try replaying.replay_all(self, diagnostic);
                try checkpoints.take_over(self, end, diagnostic);
            }
            self.shown_sequence = self.sequence;
            self.begun = true;
        }

        // ---- what a part's files hold ----

        /// The row that has this id and is not gone.
        pub fn find_row(self: *Self, asked: Ids, row: usize, diagnostic: *Diagnostic) Error!?Row {
            if (self.kind) |kind| if ((kind == .strings) != (asked == .strings)) return null;
            if (self.delta.find_row(asked, row)) |found| return .{ .part = delta_room.part_number, .vertex = found };
            for (self.parts.items, 0..) |*part, i| {
                if (part.finder == null) try self.open_finder(part, diagnostic);
                if (!part.ids.?.same_kind(asked)) continue;
                const vertex = part.finder.?.find(part.ids.?, asked, row) orelse continue;
                const gone = if (self.options.writable) &part.gone else &part.dead;
                if (!gone.contains(vertex)) return .{ .part = @intCast(i), .vertex = vertex };
            }
            return null;
        }

        /// Whose id stands at `row`.
        pub fn id_of(self: *const Self, row: Row) struct { Ids, usize } {
            if (row.part != delta_room.part_number) return .{ self.parts.items[row.part].ids.?, row.vertex };
            const place = self.delta.place_of(row.vertex);
            return .{ place.record.rows.ids, place.at };
        }

        /// A row of a part that has this id, dead or not.
        pub fn find_part_of(self: *Self, asked: Ids, row: usize, diagnostic: *Diagnostic) Error!?Row {
            for (self.parts.items, 0..) |*part, i| {
                if (part.finder == null) try self.open_finder(part, diagnostic);
                if (!part.ids.?.same_kind(asked)) continue;
                if (part.finder.?.find(part.ids.?, asked, row)) |vertex| return .{ .part = @intCast(i), .vertex = vertex };
            }
            return null;
        }

        pub fn open_finder(self: *Self, part: *Part, diagnostic: *Diagnostic) Error!void {
            if (!self.is_live) { // not written yet: the first write does so
                const bytes = try find.encode(self.allocator, part.ids.?);
                part.finder_owned = bytes;
                part.finder = find.Finder.parse(bytes, part.n) catch unreachable; // as we just made it
                return;
            }
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ part.path, find.file_name }) catch unreachable; // root.zig limits it
            const bytes = self.store.map(name) catch |err| return switch (@as(anyerror, err)) {
                error.FileNotFound => diagnostics.damaged(diagnostic, name, "is missing", .{}),
                error.EndOfStream => diagnostics.damaged(diagnostic, name, "is empty", .{}),
                else => file_error(diagnostic, name, "map", err),
            };
            part.finder = find.Finder.parse(@alignCast(bytes), part.n) catch |err| {
                self.store.unmap(bytes);
                return switch (err) {
                    error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
                    error.NewerVersion => diagnostics.newer(diagnostic, name),
                };
            };
            part.finder_map = bytes;
        }

        /// A reader's look at what others have written since. Says whether anything changed. Where the folder holds another
        /// index by now the caller has to open it again: error.Unsupported.
        pub fn refresh(self: *Self, diagnostic: *Diagnostic) Error!bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.options.writable) return false; // nobody else writes
            self.seen.lock(); // a reader syncs nothing
            defer self.seen.unlock();
            defer self.shown_sequence = self.sequence;
            return looking.look(self, false, diagnostic);
        }

        // ---- writing ----

        /// Rows with these ids are gone when this returns, on the device where durability asks for it. Ids that no row has are
        /// left out.
        pub fn delete(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!Done {
            return writing.delete(self, ids, diagnostic);
        }

        /// The same for rows as a search finds them. Where `layout` is no longer that of the folder nothing is done: Done.outcome.
        pub fn delete_rows(self: *Self, layout: u64, rows: []const Row, diagnostic: *Diagnostic) Error!Done {
            return writing.delete_rows(self, layout, rows, diagnostic);
        }

        /// Rows that are there when this returns, on the device where durability asks for it: all or none.
        pub fn insert(self: *Self, rows: rows_payload.Rows, diagnostic: *Diagnostic) Error!Done {
            const done = try writing.insert(self, rows, null, diagnostic);
            self.link_after(done);
            return done;
        }

        /// The same in the place of rows that are still where the caller found them; else nothing is done: Done.outcome.
        pub fn update(self: *Self, rows: rows_payload.Rows, expected: writing.Expected, diagnostic: *Diagnostic) Error!Done {
            const done = try writing.insert(self, rows, expected, diagnostic);
            self.link_after(done);
            return done;
        }

        /// A write that is done links as many rows as it brought, and while more wait as many again.
        fn link_after(self: *Self, done: Done) void {
            if (done.outcome != .done or done.rows == 0) return;
            self.seen.lock();
            const delta = self.delta.hold();
            const shown = delta.shown_rows;
            const its_shape = self.shape();
            self.seen.unlock();
            defer delta.release();
            linking.link(self.allocator, &delta.links, its_shape, shown, @intCast(@min(linking.step_most, 2 * done.rows)));
        }

        /// What a call needs to know that makes a part of its rows before it comes with them; their vectors stay with it. Nothing is
        /// done where it could not come now: Done.outcome.
        pub fn reserve(self: *Self, rows: rows_payload.Rows, diagnostic: *Diagnostic) Error!Done {
            return calls.reserve(self, rows, diagnostic);
        }

        /// The rows of that part are there when this returns, on the device: all or none (call.zig).
        pub fn insert_part(self: *Self, what: calls.Call, diagnostic: *Diagnostic) Error!Done {
            return calls.commit(self, what, diagnostic);
        }

        /// Whether the index gave a row this number.
        pub fn gave(self: *const Self, number: i64) bool {
            if (number < 0 or number >= self.next_row) return false;
            for (self.reserved.items) |one| if (one.holds(number)) return false;
            return true;
        }

        /// A part, whose files are complete, takes the place of those parts and rows of a view that it was made of (fold.zig).
        pub fn fold(self: *Self, what: folding.Fold, diagnostic: *Diagnostic) Error!Done {
            return folding.commit(self, what, diagnostic);
        }

        /// Other columns, where the schema is still of this version: one root, which is on the device when this returns.
        pub fn set_schema(self: *Self, text: []const u8, version: u64, diagnostic: *Diagnostic) Error!Done {
            return columns.set(self, text, version, diagnostic);
        }

        /// The columns, copied as far as they have room, and their size and version.
        pub fn copy_schema(self: *Self, out: []u8) struct { usize, u64 } {
            self.mutex.lock();
            defer self.mutex.unlock();
            const text = self.schema orelse "";
            const room = @min(out.len, text.len);
            @memcpy(out[0..room], text[0..room]);
            return .{ text.len, self.schema_version };
        }

        /// Takes away what no root names, as far as nobody holds it.
        pub fn sweep(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            if (self.is_live) try checkpoints.remove_litter(self, diagnostic);
        }

        /// The name of a part's folder that is still to be made; no other gets it.
        pub fn next_part(self: *Self, buffer: *[32]u8) []const u8 {
            self.mutex.lock();
            defer self.mutex.unlock();
            const name = std.fmt.bufPrint(buffer, "part-{x:0>16}", .{self.next_file}) catch unreachable; // 21 bytes
            self.next_file += 1;
            return name;
        }

        pub fn check_writable(self: *Self, diagnostic: *Diagnostic) Error!void {
            std.debug.assert(self.begun);
            if (!self.options.writable) {
                diagnostic.say("this index was opened to read", .{});
                return error.Unsupported;
            }
            if (self.poisoned) {
                diagnostic.say("an earlier write failed in a way that leaves open what the device holds: open the index again", .{});
                return error.Io;
            }
        }

        /// Dead from now on, for every search that begins; `seen` is held, or nobody looks yet.
        pub fn show(self: *Self, rows: []const Row) void {
            for (rows) |row| {
                if (row.part == delta_room.part_number) {
                    self.delta.mark_dead(row.vertex);
                    continue;
                }
                const part = &self.parts.items[row.part];
                part.dead_count += @intFromBool(part.dead.insert_new(row.vertex));
            }
        }

        pub fn show_synced(self: *Self) void {
            self.seen.lock();
            defer self.seen.unlock();
            var count: usize = 0;
            for (self.waiting.items) |one| {
                if (one.sequence > self.synced_sequence) break;
                self.show(one.rows);
                self.delta.show(one.records);
                self.shown_sequence = one.sequence;
                self.allocator.free(one.rows);
                count += 1;
            }
            self.waiting.replaceRangeAssumeCapacity(0, count, &.{});
        }

        /// All that was written, whether it waited for a sync or not: a new root holds it. `seen` is held.
        pub fn show_all(self: *Self) void {
            for (self.parts.items) |*part| {
                @memcpy(part.dead.words, part.gone.words);
                part.dead_count = part.dead.count();
            }
            self.delta.show_all();
            self.shown_sequence = self.sequence;
            for (self.waiting.items) |one| self.allocator.free(one.rows);
            self.waiting.clearRetainingCapacity();
        }

        /// A sealed record behind the log's last one. Where that fails the log is as long as it was.
        pub fn append(self: *Self, bytes: []u8, kind: log_file.Kind, rows: u32, diagnostic: *Diagnostic) Error!void {
            const before = self.position;
            log_file.seal(bytes, kind, rows, self.synced_offset, &self.position);
            const file = self.log.?;
            self.store.write(file, bytes, before.offset) catch |err| {
                self.position = before;
                self.store.truncate(file, before.offset) catch {
                    self.poisoned = true;
                };
                return file_error(diagnostic, self.log_name.?, "write to", err);
            };
            self.sequence = self.position.sequence;
            self.last_is_promise = kind == .promise;
        }

        /// One sync serves all who wait: whoever finds none under way makes it, without the lock.
        pub fn wait_until_synced(self: *Self, sequence: u64, diagnostic: *Diagnostic) Error!void {
            while (self.synced_sequence < sequence) {
                if (self.poisoned) {
                    diagnostic.say("the write was not synced: open the index again to see what the device holds", .{});
                    return error.Io;
                }
                if (self.syncing) {
                    self.changed.wait(&self.mutex);
                    continue;
                }
                try self.sync_now(diagnostic);
            }
        }

        fn sync_now(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.syncing = true;
            const reached = self.sequence;
            const offset = self.position.offset;
            const file = self.log.?;
            self.mutex.unlock();
            const failure = self.store.sync(file);
            self.mutex.lock();
            self.syncing = false;
            defer self.changed.broadcast();
            failure catch |err| {
                self.poisoned = true;
                return file_error(diagnostic, self.log_name.?, "sync", err);
            };
            self.synced_sequence = @max(self.synced_sequence, reached);
            self.synced_offset = @max(self.synced_offset, offset);
            self.show_synced();
        }

        /// All that was acknowledged is on the device when this returns.
        pub fn sync(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (!self.options.writable or !self.is_live) return;
            try self.check_writable(diagnostic);
            try self.wait_until_synced(self.sequence, diagnostic);
        }

        /// The log is folded into tombstones.
        pub fn checkpoint(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            if (!self.is_live) return;
            try checkpoints.make(self, diagnostic);
        }

        /// A writer's end: everything synced, and a last record that says so, by which damage to any other shows.
        pub fn finish(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (!self.options.writable or !self.begun or !self.is_live) return;
            if (self.poisoned) {
                // Whoever waited for a sync was told.
                if (self.options.durability == .sync or self.synced_sequence >= self.sequence) return;
                return self.check_writable(diagnostic);
            }
            try self.wait_until_synced(self.sequence, diagnostic);
            if (self.last_is_promise or self.position.offset == log_file.header_bytes) return;
            var record: [log_file.record_header_bytes]u8 align(8) = @splat(0);
            self.synced_offset = self.position.offset;
            try self.append(&record, .promise, 0, diagnostic);
            while (self.syncing) self.changed.wait(&self.mutex);
            try self.sync_now(diagnostic);
            checkpoints.remove_litter(self, diagnostic) catch {}; // the next writer does it
        }

        // ---- looking ----

        /// A copy of the dead rows of a part; false, and nothing copied, where none is.
        pub fn copy_dead(self: *Self, part: usize, out: *BitSet) bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            const one = &self.parts.items[part];
            if (one.dead_count == 0) return false;
            @memcpy(out.words, one.dead.words);
            return true;
        }

        /// What a search that begins now sees.
        pub fn take_view(self: *Self) error{OutOfMemory}!*view_room.View {
            self.seen.lock();
            defer self.seen.unlock();
            return view_room.View.take(self);
        }

        pub fn info(self: *Self) Info {
            self.mutex.lock();
            defer self.mutex.unlock();
            var rows: u64 = 0;
            var dead: u64 = 0;
            for (self.parts.items) |part| {
                rows += part.n;
                dead += part.dead_count;
            }
            return .{
                .is_live = self.is_live,
                .is_writable = self.options.writable,
                .generation = self.generation,
                .sequence = self.sequence,
                .layout = self.layout,
                .rows = rows,
                .dead = dead,
                .parts = self.parts.items.len,
                .delta_rows = self.delta.shown_rows,
                .delta_dead = self.delta.dead.count,
                .delta_bytes = self.delta.bytes,
                .delta_bytes_max = self.options.delta_bytes,
                .kind = self.kind,
                .next_row = self.next_row,
                .log_bytes = if (self.is_live and self.begun) self.position.offset else 0,
                .log_synced_bytes = if (self.is_live and self.begun) @max(self.synced_offset, self.position.promise) else 0,
                .poisoned = self.poisoned,
            };
        }
    };
}
