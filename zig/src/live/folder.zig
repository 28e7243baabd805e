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
const adopting = @import("adopt.zig");
const checkpoints = @import("checkpoint.zig");
const dead_file = @import("dead.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const log_file = @import("log.zig");
const payloads = @import("payload.zig");
const root_file = @import("root.zig");
const BitSet = base.BitSet;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
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
    /// Decides uuid and salts; the system's randomness unless a test says otherwise.
    seed: ?u64 = null,
};

/// What became of a write.
pub const Done = struct {
    /// Rows that were there and are gone.
    rows: u64 = 0,
    /// The change that did it, or the last one before where nothing was to be done.
    sequence: u64 = 0,
    durable: bool = false,
};

pub const Info = struct {
    is_live: bool,
    is_writable: bool,
    generation: u64,
    sequence: u64,
    rows: u64,
    dead: u64,
    parts: u64,
    log_bytes: u64,
    /// Bytes of it that are known to be on the device.
    log_synced_bytes: u64,
    poisoned: bool,
};

/// How often a reader begins again that a checkpoint overtook.
const reader_attempts = 8;

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

            fn deinit(self: *Part, live: *Self) void {
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

        const Row = struct { part: u32, vertex: u32 };
        /// A record that waits for its sync.
        const Waiting = struct { sequence: u64, rows: []Row };

        allocator: std.mem.Allocator,
        store: *Store,
        options: Options,
        prng: base.Prng,
        mutex: std.Thread.Mutex = .{},
        /// A sync has ended, or the writer was poisoned.
        changed: std.Thread.Condition = .{},

        /// False: an index without live.json, as `velo.build` leaves it.
        is_live: bool = false,
        begun: bool = false,
        uuid: [32]u8 = @splat('0'),
        dim: u32 = 0,
        metric: []const u8 = "",
        generation: u64 = 0,
        next_row: u64 = 0,
        next_file: u64 = 1,
        parts: std.ArrayList(Part) = .empty,
        /// Named by the root that was read, and until the first write not there.
        log_name: ?[]const u8 = null,
        log: ?Store.File = null,
        log_header: log_file.Header = undefined,
        position: log_file.Position = undefined,
        /// The change that the tombstone files hold.
        root_sequence: u64 = 0,
        sequence: u64 = 0,
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
            };
            errdefer self.deinit();
            try self.read_root(diagnostic);
            return self;
        }

        /// Closes the log as it is. A writer calls `finish` before.
        pub fn deinit(self: *Self) void {
            if (self.log) |file| self.store.close(file);
            self.log = null;
            self.forget_parts();
            self.parts.deinit(self.allocator);
            for (self.waiting.items) |one| self.allocator.free(one.rows);
            self.waiting.deinit(self.allocator);
            if (self.log_name) |name| self.allocator.free(name);
            self.log_name = null;
            self.allocator.free(self.metric);
            self.metric = "";
        }

        fn forget_parts(self: *Self) void {
            for (self.parts.items) |*part| part.deinit(self);
            self.parts.clearRetainingCapacity();
        }

        fn read_root(self: *Self, diagnostic: *Diagnostic) Error!void {
            const text = try self.root_text(diagnostic) orelse describe: {
                // The first write puts a root there and takes the manifest away: it may do so between the two looks.
                adopting.describe(self, diagnostic) catch |err| {
                    if (err != error.NotAnIndex) return err;
                    break :describe try self.root_text(diagnostic) orelse return err;
                };
                return;
            };
            defer self.allocator.free(text);
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const root = root_file.parse(arena.allocator(), text) catch |err| return switch (err) {
                error.BadRoot => diagnostics.damaged(diagnostic, root_file.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, root_file.file_name),
                error.OutOfMemory => error.OutOfMemory,
            };
            if (self.options.writable and !root_file.is_writable(&root)) return diagnostics.newer(diagnostic, root_file.file_name);
            try self.take_root(&root, diagnostic);
        }

        fn root_text(self: *Self, diagnostic: *Diagnostic) Error!?[]u8 {
            return diagnostics.read_file(self.allocator, self.store, root_file.file_name, root_file.bytes_max, diagnostic);
        }

        fn take_root(self: *Self, root: *const root_file.Root, diagnostic: *Diagnostic) Error!void {
            if (self.begun and !self.same_parts(root.parts)) return replaced(diagnostic);
            if (root.uuid.len != self.uuid.len) return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
            @memcpy(&self.uuid, root.uuid);
            self.is_live = true;
            self.generation = root.generation;
            self.dim = root.dim;
            const metric = try self.allocator.dupe(u8, root.metric);
            self.allocator.free(self.metric);
            self.metric = metric;
            self.root_sequence = root.sequence;
            self.next_row = root.next_row;
            self.next_file = root.next_file;
            const name = try self.allocator.dupe(u8, root.first_log);
            if (self.log_name) |before| self.allocator.free(before);
            self.log_name = name;
            if (self.same_parts(root.parts)) {
                for (self.parts.items, root.parts) |*part, named| {
                    const path = try self.allocator.dupe(u8, named.path);
                    self.allocator.free(part.path);
                    part.path = path;
                    const file = if (named.dead) |dead| try self.allocator.dupe(u8, dead) else null;
                    if (part.file) |before| self.allocator.free(before);
                    part.file = file;
                }
                return;
            }
            self.forget_parts();
            for (root.parts) |part| try self.add_part(part.path, part.uuid, part.n, part.dead);
        }

        /// The parts that are open already, which keep their ids.
        fn same_parts(self: *const Self, named: []const root_file.Part) bool {
            if (named.len != self.parts.items.len) return false;
            for (self.parts.items, named) |part, other| {
                if (part.n != other.n or !std.mem.eql(u8, part.uuid, other.uuid)) return false;
            }
            return true;
        }

        pub fn add_part(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!void {
            const allocator = self.allocator;
            try self.parts.ensureUnusedCapacity(allocator, 1);
            var dead = try BitSet.init(allocator, @intCast(n));
            errdefer dead.deinit(allocator);
            var gone = if (self.options.writable) try BitSet.init(allocator, @intCast(n)) else dead;
            errdefer if (self.options.writable) gone.deinit(allocator);
            const path_copy = try allocator.dupe(u8, path);
            errdefer allocator.free(path_copy);
            const uuid_copy = try allocator.dupe(u8, uuid);
            errdefer allocator.free(uuid_copy);
            const file_copy = if (file) |name| try allocator.dupe(u8, name) else null;
            self.parts.appendAssumeCapacity(.{ .path = path_copy, .uuid = uuid_copy, .n = n, .dead = dead, .gone = gone, .file = file_copy });
        }

        /// The ids of a part, in the order of its vertices; they are borrowed and must outlive this.
        pub fn attach(self: *Self, part: usize, ids: Ids, diagnostic: *Diagnostic) Error!void {
            const one = &self.parts.items[part];
            if (ids.len() != one.n or !ids.is_whole()) return diagnostics.damaged(diagnostic, "ids.arrow", "does not fit its index", .{});
            one.ids = ids;
        }

        /// Reads what there is. A writer leaves no torn end behind: it goes into a file of its own and then out of the log.
        pub fn begin(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            for (self.parts.items) |part| std.debug.assert(part.ids != null);
            if (self.is_live and !self.options.writable) {
                self.begun = true;
                errdefer self.begun = false;
                _ = try self.look(true, diagnostic);
            } else if (self.is_live) {
                const end = try self.replay_all(diagnostic);
                try checkpoints.take_over(self, end, diagnostic);
            }
            self.begun = true;
        }

        // ---- what a part's files hold ----

        pub fn find_part_of(self: *Self, asked: Ids, row: usize, diagnostic: *Diagnostic) Error!?Row {
            for (self.parts.items, 0..) |*part, i| {
                if (part.finder == null) try self.open_finder(part, diagnostic);
                if (!part.ids.?.same_kind(asked)) continue;
                if (part.finder.?.find(part.ids.?, asked, row)) |vertex| return .{ .part = @intCast(i), .vertex = vertex };
            }
            return null;
        }

        fn open_finder(self: *Self, part: *Part, diagnostic: *Diagnostic) Error!void {
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

        /// Tombstones and the whole log, with the lock held. Leaves the old state where it fails.
        fn replay_all(self: *Self, diagnostic: *Diagnostic) Error!log_file.End {
            for (self.parts.items) |*part| {
                part.dead.clear();
                if (part.file) |name| {
                    const bytes = try diagnostics.read_file(self.allocator, self.store, name, dead_file.file_bytes(part.n), diagnostic) orelse
                        return diagnostics.damaged(diagnostic, name, "is missing", .{});
                    defer self.allocator.free(bytes);
                    dead_file.parse(bytes, part.uuid, &part.dead) catch |err| return switch (err) {
                        error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
                        error.NewerVersion => diagnostics.newer(diagnostic, name),
                    };
                }
                part.dead_count = part.dead.count();
                part.file_count = part.dead_count;
                if (self.options.writable) @memcpy(part.gone.words, part.dead.words);
            }
            self.sequence = self.root_sequence;
            return self.replay(true, diagnostic);
        }

        /// The log, from its start or from where it was left.
        fn replay(self: *Self, from_start: bool, diagnostic: *Diagnostic) Error!log_file.End {
            const name = self.log_name.?;
            const bytes = try diagnostics.read_file(self.allocator, self.store, name, std.math.maxInt(u63), diagnostic) orelse
                return diagnostics.damaged(diagnostic, name, "is missing", .{});
            defer self.allocator.free(bytes);
            if (from_start) {
                self.log_header = log_file.Header.parse(bytes) catch |err| return switch (err) {
                    error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
                    error.NewerVersion => diagnostics.newer(diagnostic, name),
                };
                var uuid: [16]u8 = undefined;
                _ = std.fmt.hexToBytes(&uuid, &self.uuid) catch return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
                if (!std.mem.eql(u8, &uuid, &self.log_header.uuid)) return diagnostics.damaged(diagnostic, name, "is the log of another index", .{});
                if (self.log_header.first_sequence != self.root_sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{root_file.file_name});
                self.position = .begin(&self.log_header);
                self.last_is_promise = false;
            }
            if (self.position.offset > bytes.len) return diagnostics.damaged(diagnostic, name, "is shorter than it was", .{});
            var scanner: log_file.Scanner = .{ .bytes = bytes, .first = 0, .position = self.position };
            while (scanner.next()) |record| {
                try self.apply(&record, diagnostic);
                self.position = scanner.position;
                self.sequence = record.sequence;
                self.last_is_promise = record.kind == .promise;
            }
            return scanner.end() catch diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
        }

        fn apply(self: *Self, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
            const name = self.log_name.?;
            switch (record.kind) {
                .promise => {},
                .delete => {
                    const ids = payloads.decode_ids(self.allocator, record.payload, record.rows) catch |err| return switch (err) {
                        error.Damaged => diagnostics.damaged(diagnostic, name, "has a record {d} that cannot be", .{record.sequence}),
                        error.OutOfMemory => error.OutOfMemory,
                    };
                    defer payloads.free_ids(self.allocator, ids);
                    for (0..ids.len()) |i| {
                        const row = try self.find_part_of(ids, i, diagnostic) orelse
                            return diagnostics.damaged(diagnostic, name, "deletes an id in record {d} that no row has", .{record.sequence});
                        const part = &self.parts.items[row.part];
                        part.dead_count += @intFromBool(part.dead.insert_new(row.vertex));
                        if (self.options.writable) part.gone.insert(row.vertex);
                    }
                },
                _ => return diagnostics.newer(diagnostic, name),
            }
        }

        /// A reader's look at what others have written since. Says whether anything changed. Where the folder holds another
        /// index by now the caller has to open it again: error.Unsupported.
        pub fn refresh(self: *Self, diagnostic: *Diagnostic) Error!bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.options.writable) return false; // nobody else writes
            return self.look(false, diagnostic);
        }

        fn look(self: *Self, begin_again: bool, diagnostic: *Diagnostic) Error!bool {
            const sequence = self.sequence;
            const generation = self.generation;
            var again = begin_again;
            var attempts: u32 = 0;
            while (true) : (attempts += 1) {
                self.look_once(if (again) null else generation, diagnostic) catch |err| switch (err) {
                    // A checkpoint may have taken away what the root that was read names, or a write been taken back.
                    error.Corrupt => if (attempts < reader_attempts) {
                        again = true;
                        continue;
                    } else return err,
                    else => return err,
                };
                return self.sequence != sequence;
            }
        }

        /// `generation` is the one whose log was read up to `position`; null: from the start. Where it fails, what is dead
        /// stays as it was.
        fn look_once(self: *Self, generation: ?u64, diagnostic: *Diagnostic) Error!void {
            const was_live = self.is_live;
            errdefer self.generation = 0; // the next look begins from the start
            self.read_root(diagnostic) catch |err| return switch (err) {
                error.NotAnIndex => replaced(diagnostic), // and its files are gone
                else => err,
            };
            if (!self.is_live) return;
            if (was_live and generation == self.generation) {
                _ = try self.replay(false, diagnostic);
                return;
            }
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const before = try arena.allocator().alloc([]const u64, self.parts.items.len);
            for (self.parts.items, before) |part, *words| words.* = try arena.allocator().dupe(u64, part.dead.words);
            errdefer for (self.parts.items, before) |*part, words| {
                @memcpy(part.dead.words, words);
                part.dead_count = part.dead.count();
            };
            _ = try self.replay_all(diagnostic);
        }

        pub fn replaced(diagnostic: *Diagnostic) Error {
            diagnostic.say("the folder holds another index by now: open it again", .{});
            return error.Unsupported;
        }

        // ---- writing ----

        /// Rows with these ids are gone when this returns, on the device where durability asks for it. Ids that no row has are
        /// left out.
        pub fn delete(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            if (self.parts.items[0].n > 0 and ids.len() > 0 and !self.parts.items[0].ids.?.same_kind(ids)) {
                diagnostic.argument = "ids";
                diagnostic.say("the ids of this index are {s}", .{if (self.parts.items[0].ids.? == .numbers) "whole numbers" else "strings"});
                return error.InvalidArgument;
            }
            for (0..ids.len()) |i| {
                const row = try self.find_part_of(ids, i, diagnostic) orelse continue;
                try self.take(&rows, row);
            }
            return self.write_delete(&rows, diagnostic);
        }

        /// The same for vertices of a part, as a filter finds them.
        pub fn delete_vertices(self: *Self, part: u32, vertices: []const u32, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            for (vertices) |vertex| {
                if (part >= self.parts.items.len or vertex >= self.parts.items[part].n) {
                    diagnostic.argument = "vertices";
                    diagnostic.say("vertex {d} of part {d} is no row", .{ vertex, part });
                    return error.InvalidArgument;
                }
                try self.take(&rows, .{ .part = part, .vertex = vertex });
            }
            return self.write_delete(&rows, diagnostic);
        }

        fn take(self: *Self, rows: *std.ArrayList(Row), row: Row) Error!void {
            try rows.ensureUnusedCapacity(self.allocator, 1);
            if (self.parts.items[row.part].gone.insert_new(row.vertex)) rows.appendAssumeCapacity(row);
        }

        fn put_back(self: *Self, rows: []const Row) void {
            for (rows) |row| self.parts.items[row.part].gone.remove(row.vertex);
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

        /// With the lock held; `rows` are taken already.
        fn write_delete(self: *Self, rows: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!Done {
            if (rows.items.len > 0) {
                if (!self.is_live) {
                    // The first root holds none of it: the record comes behind.
                    self.put_back(rows.items);
                    try adopting.adopt(self, diagnostic);
                    for (rows.items) |row| self.parts.items[row.part].gone.insert(row.vertex);
                }
                const bytes = try payloads.encode_delete(self, rows.items);
                defer self.allocator.free(bytes);
                if (self.options.durability == .sync) {
                    try self.waiting.ensureUnusedCapacity(self.allocator, 1);
                    const kept = try self.allocator.dupe(Row, rows.items);
                    errdefer self.allocator.free(kept);
                    try self.append(bytes, .delete, @intCast(kept.len), diagnostic);
                    self.waiting.appendAssumeCapacity(.{ .sequence = self.sequence, .rows = kept });
                } else {
                    try self.append(bytes, .delete, @intCast(rows.items.len), diagnostic);
                    self.show(rows.items);
                }
            }
            const count = rows.items.len;
            rows.clearRetainingCapacity(); // written: nothing to put back
            const sequence = self.sequence;
            if (self.options.durability == .sync) try self.wait_until_synced(sequence, diagnostic);
            // Outside a checkpoint nothing is lost where one fails: the log only goes on growing for a while.
            if (count > 0 and self.position.offset >= self.checkpoint_at and !self.poisoned) {
                var ignored: Diagnostic = .{};
                checkpoints.make(self, &ignored) catch {
                    self.checkpoint_at = 2 * self.position.offset;
                };
            }
            return .{ .rows = count, .sequence = sequence, .durable = self.synced_sequence >= sequence };
        }

        /// Dead from now on, for every search that begins.
        fn show(self: *Self, rows: []const Row) void {
            for (rows) |row| {
                const part = &self.parts.items[row.part];
                part.dead_count += @intFromBool(part.dead.insert_new(row.vertex));
            }
        }

        pub fn show_synced(self: *Self) void {
            var count: usize = 0;
            for (self.waiting.items) |one| {
                if (one.sequence > self.synced_sequence) break;
                self.show(one.rows);
                self.allocator.free(one.rows);
                count += 1;
            }
            self.waiting.replaceRangeAssumeCapacity(0, count, &.{});
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
                .rows = rows,
                .dead = dead,
                .parts = self.parts.items.len,
                .log_bytes = if (self.is_live and self.begun) self.position.offset else 0,
                .log_synced_bytes = if (self.is_live and self.begun) @max(self.synced_offset, self.position.promise) else 0,
                .poisoned = self.poisoned,
            };
        }
    };
}
