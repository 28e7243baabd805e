//! A folder with live data, open: to read, or to write as the only process that does.
//!
//! A write goes: ids are looked up, a record is appended to the log, synced where durability asks for it, applied,
//! acknowledged. One sync serves all that wait for it. Checkpoints fold the log into new files, so it stays short.
//! A sync that fails leaves the writer poisoned: the content of the device is unknown, so it writes no more until it is
//! opened again and has read it.
//!
//! Opening takes three calls, since ids are in the caller's files: `open` says which parts there are, `attach` brings the
//! ids of each, `begin` reads tombstones and log.
const std = @import("std");
const base = @import("base");
const dead_file = @import("dead.zig");
const delta_room = @import("delta.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const linking = @import("link.zig");
const log_file = @import("log.zig");
const moment = @import("moment.zig");
const rows_file = @import("rows.zig");
const root_file = @import("root.zig");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const Delta = delta_room.Delta;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Ids = find.Ids;
const Row = delta_room.Row;
const View = delta_room.View;
const file_error = diagnostics.file_error;
const manifest = @import("layout").manifest;

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
    /// The largest size of the delta; a write that would exceed it is refused: Done.outcome.
    delta_bytes: u64 = 64 << 20,
    /// Decides uuid and salts; the system's randomness unless a test says otherwise.
    seed: ?u64 = null,
};

/// Properties of an index from the files of its parts. Its root keeps it from the first write on, since parts come and go.
pub const Built = struct {
    kind: ?rows_file.Kind = null,
    /// The number behind that of the last row, where ids are such.
    next_row: u64 = 0,
    schema: ?[]const u8 = null,
};

/// The outcome of a write.
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
    /// A writer needs these after each call (Info).
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
    kind: ?rows_file.Kind,
    next_row: u64,
    log_bytes: u64,
    /// Bytes of it that are known to be on the device.
    log_synced_bytes: u64,
    poisoned: bool,
};

/// Places of rows when a caller read them.
pub const Expected = struct { layout: u64, rows: []const Row };

/// Numbers of the rows of one call.
const Numbers = struct {
    first: u64,
    count: u64,

    fn holds(self: Numbers, number: i64) bool {
        return number >= 0 and @as(u64, @intCast(number)) -% self.first < self.count;
    }
};

/// A call of more rows than the delta has room for; they come as a part.
pub const Call = struct {
    /// Without vectors and metadata, which the part has; where the index numbers them without ids.
    rows: rows_file.Rows,
    /// Of those the number of the first, as `reserve` gave it.
    first: u64 = 0,
    /// A folder, complete and synced but for ids.find.
    path: []const u8,
    uuid: []const u8,
    /// In the order of its vertices; borrowed until the folder closes or a fold takes the part away.
    ids: find.Ids,
};

/// A part that takes the place of the parts and rows that it was made of.
pub const Fold = struct {
    view: *const View,
    /// Parts of the view that the new one takes the place of; ascending.
    parts: []const u32,
    /// The rows of these parts that went into the new one: a bit a row, and each part begins a word. A merge that goes on
    /// after a kill took them before the view, in which some of them may be dead.
    taken: []const u64,
    /// Whether the rows of its delta went into it as well.
    with_delta: bool,
    /// Null: nothing lived, and no part is made.
    part: ?struct {
        /// A folder, complete and synced but for ids.find.
        path: []const u8,
        uuid: []const u8,
        ids: find.Ids,
    },
};

/// A root holds parts and requests beside it.
const schema_bytes_max = root_file.bytes_max / 2;
const least_bytes = 4 << 20;
const temporary = root_file.file_name ++ ".tmp";

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

            fn bury(self: *Part, ids: Ids, row: usize, diagnostic: *Diagnostic) Error!void {
                const vertex = self.finder.?.find(self.ids.?, ids, row) orelse {
                    diagnostic.say("a part was made without a row that it should have", .{});
                    return error.InvalidArgument;
                };
                self.gone.insert(vertex);
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
        /// Guards also what views copy, and is held for no sync: no search waits for the device. Taken after
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
        /// The kind of ids, as far as a row or a part has told.
        kind: ?rows_file.Kind = null,
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
        requests: root_file.Requests = .{},
        generation: u64 = 0,
        next_row: u64 = 0,
        /// Below it, and of rows that are still to come: nobody was told them.
        reserved: std.ArrayList(Numbers) = .empty,
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
        /// The offset of the first record that is a change: behind those that were carried over.
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
            try self.read_root(diagnostic);
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

        fn forget_parts(self: *Self) void {
            for (self.parts.items) |*part| part.deinit(self);
            self.parts.clearRetainingCapacity();
        }

        pub fn shape(self: *const Self) scan.Shape {
            return .{ .dim = self.dim, .metric = std.meta.stringToEnum(scan.Metric, self.metric) orelse .l2, .dtype = self.dtype };
        }

        fn add_part(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!void {
            try self.parts.ensureUnusedCapacity(self.allocator, 1);
            self.parts.appendAssumeCapacity(try self.new_part(path, uuid, n, file));
        }

        fn new_part(self: *Self, path: []const u8, uuid: []const u8, n: u64, file: ?[]const u8) error{OutOfMemory}!Part {
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

        /// Sets the columns; nothing changes if they are the same.
        fn take_schema(self: *Self, text: []const u8) error{OutOfMemory}!void {
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
                _ = try self.look(true, diagnostic);
            } else if (self.is_live) {
                const end = try self.replay_all(diagnostic);
                try self.take_over(end, diagnostic);
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
        fn id_of(self: *const Self, row: Row) find.Place {
            if (row.part != delta_room.part_number) return .{ self.parts.items[row.part].ids.?, row.vertex };
            const place = self.delta.place_of(row.vertex);
            return .{ place.record.rows.ids, place.at };
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

        /// A reader's look at what others have written since. Says whether anything changed. Where the folder holds another
        /// index by now the caller has to open it again: error.Unsupported.
        pub fn refresh(self: *Self, diagnostic: *Diagnostic) Error!bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (self.options.writable) return false; // nobody else writes
            self.seen.lock(); // a reader syncs nothing
            defer self.seen.unlock();
            defer self.shown_sequence = self.sequence;
            return self.look(false, diagnostic);
        }

        // ---- reading what there is ----

        /// The root as it is now, or the index as it was built.
        pub fn read_root(self: *Self, diagnostic: *Diagnostic) Error!void {
            const text = try self.root_text(diagnostic) orelse describe: {
                // The first write puts a root there and takes the manifest away: it may do so between the two looks.
                self.describe(diagnostic) catch |err| {
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
            if (self.begun and self.is_live and !std.mem.eql(u8, root.uuid, &self.uuid)) return diagnostics.replaced(diagnostic);
            if (self.begun and !self.same_parts(root.parts)) {
                // Of the same folder, or was it replaced?
                self.moved = self.is_live or self.holds_part_of(root.parts) or self.was_built_as(root.built);
                return diagnostics.replaced(diagnostic);
            }
            const dtype = if (root.dtype) |name| scan.Dtype.of(name) else try self.dtype_of_part(root, diagnostic);
            if (root.uuid.len != self.uuid.len) return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
            @memcpy(&self.uuid, root.uuid);
            self.is_live = true;
            self.generation = root.generation;
            self.dim = root.dim;
            self.dtype = dtype orelse return diagnostics.damaged(diagnostic, root_file.file_name, "names a type that is none", .{});
            if (root.ids) |name| {
                self.kind = std.meta.stringToEnum(rows_file.Kind, name) orelse
                    return diagnostics.damaged(diagnostic, root_file.file_name, "names ids that are none", .{});
            }
            self.has_rows = root_file.has_rows(root);
            self.has_columns = root_file.has_columns(root);
            if (root.schema) |text| try self.take_schema(text); // where it says none, the parts did
            const built = if (root.built) |text| try self.allocator.dupe(u8, text) else null;
            if (self.built) |before| self.allocator.free(before);
            self.built = built;
            self.requests.clear(self.allocator);
            for (root.requests) |one| try self.requests.add(self.allocator, one.request, one.sequence, one.rows, one.row);
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

        /// Roots of the first version do not say it; their part does.
        fn dtype_of_part(self: *Self, root: *const root_file.Root, diagnostic: *Diagnostic) Error!?scan.Dtype {
            if (root.parts.len == 0) return null;
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ root.parts[0].path, "manifest.json" }) catch unreachable; // root.zig limits it
            var parsed = try self.read_manifest(name, diagnostic);
            defer parsed.deinit();
            return scan.Dtype.of(parsed.value.dtype);
        }

        /// Whether the folder was built as the one part that is open here, which merges may have replaced since.
        fn was_built_as(self: *Self, built: ?[]const u8) bool {
            const uuid = built orelse return false;
            return self.parts.items.len == 1 and std.mem.eql(u8, self.parts.items[0].uuid, uuid);
        }

        /// A static index that became live has the part that it was.
        fn holds_part_of(self: *Self, named: []const root_file.Part) bool {
            for (self.parts.items) |part| {
                for (named) |other| if (std.mem.eql(u8, part.uuid, other.uuid)) return true;
            }
            return false;
        }

        /// The parts that are open already, which keep their ids. A part of no name is what the first of a live folder was.
        fn same_parts(self: *Self, named: []const root_file.Part) bool {
            if (named.len != self.parts.items.len) return false;
            for (self.parts.items, named) |part, other| {
                if (part.n != other.n or !std.mem.eql(u8, part.uuid, other.uuid)) return false;
                if (part.path.len > 0 and !std.mem.eql(u8, part.path, other.path)) return false;
            }
            return true;
        }

        /// Reads the changes of others since, or everything. Returns whether anything changed.
        pub fn look(self: *Self, begin_again: bool, diagnostic: *Diagnostic) Error!bool {
            const sequence = self.sequence;
            const generation = self.generation;
            const schema_version = self.schema_version;
            var again = begin_again;
            var attempt: u32 = 1;
            // Of the root whose files could not be read.
            var failed_at: ?u64 = null;
            while (true) : (attempt += 1) {
                var read_generation: u64 = 0;
                self.look_once(if (again) null else generation, &read_generation, diagnostic) catch |err| switch (err) {
                    // A checkpoint may have taken away what the root that was read names, or a write been taken back. Where the same
                    // root fails again it is damage.
                    error.Corrupt => if (failed_at == read_generation or attempt == moment.attempts_max) return err else {
                        failed_at = read_generation;
                        again = true;
                        continue;
                    },
                    else => return err,
                };
                return self.sequence != sequence or self.schema_version != schema_version;
            }
        }

        /// `generation` is the one whose log was read up to `position`; null: from the start. Where it fails, what is dead
        /// stays as it was. `read_generation` becomes that of the root that was read.
        fn look_once(self: *Self, generation: ?u64, read_generation: *u64, diagnostic: *Diagnostic) Error!void {
            const was_live = self.is_live;
            self.moved = false;
            errdefer {
                read_generation.* = self.generation;
                self.generation = 0; // the next look begins from the start
            }
            self.read_root(diagnostic) catch |err| return switch (err) {
                error.NotAnIndex => diagnostics.replaced(diagnostic), // and its files are gone
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
            const delta_before = self.delta.hold();
            defer delta_before.release();
            errdefer {
                self.delta.release();
                self.delta = delta_before.hold();
                for (self.parts.items, before) |*part, words| {
                    @memcpy(part.dead.words, words);
                    part.dead_count = part.dead.count();
                }
            }
            _ = try self.replay_all(diagnostic);
            self.layout += 1; // another delta: who keeps rows of the former one has to read them again
        }

        /// Tombstones and the whole log, with the lock held, into a new delta. A caller that fails puts back what it wants to keep.
        fn replay_all(self: *Self, diagnostic: *Diagnostic) Error!log_file.End {
            const delta = try delta_room.Delta.create(self.allocator);
            self.delta.release();
            self.delta = delta;
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
            const first = if (from_start) 0 else self.position.offset;
            const bytes = try diagnostics.read_from(self.allocator, self.store, name, first, std.math.maxInt(u63), diagnostic) orelse
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
            var scanner: log_file.Scanner = .{ .bytes = bytes, .first = first, .position = self.position };
            while (scanner.next()) |record| {
                try self.apply(&record, diagnostic);
                self.position = scanner.position;
                self.sequence = record.sequence;
                self.last_is_promise = record.kind == .promise;
            }
            return scanner.end() catch diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
        }

        fn apply(self: *Self, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
            switch (record.kind) {
                .promise => {},
                .delete => try self.apply_delete(record, diagnostic),
                .rows, .carried => try self.apply_rows(record, diagnostic),
                .buried => {
                    for (0..record.rows) |i| {
                        if (record.payload.len < 4 * (i + 1)) return self.unreadable(record, diagnostic);
                        const row = std.mem.readInt(u32, record.payload[4 * i ..][0..4], .little);
                        if (row >= self.delta.rows) return self.unreadable(record, diagnostic);
                        _ = self.delta.mark_gone(row);
                        self.delta.mark_dead(row);
                    }
                },
                _ => return diagnostics.newer(diagnostic, self.log_name.?),
            }
        }

        fn unreadable(self: *Self, record: *const log_file.Record, diagnostic: *Diagnostic) Error {
            return diagnostics.damaged(diagnostic, self.log_name.?, "has a record {d} that cannot be", .{record.sequence});
        }

        fn apply_delete(self: *Self, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
            const ids = rows_file.decode_ids(self.allocator, record.payload, record.rows) catch |err| return switch (err) {
                error.Damaged => self.unreadable(record, diagnostic),
                error.OutOfMemory => error.OutOfMemory,
            };
            defer rows_file.free_ids(self.allocator, ids);
            for (0..ids.len()) |i| {
                const row = try self.find_row(ids, i, diagnostic) orelse
                    return diagnostics.damaged(diagnostic, self.log_name.?, "deletes an id in record {d} that no row has", .{record.sequence});
                self.bury(row);
            }
        }

        /// Gone and dead at once: nobody waits for what was read.
        fn bury(self: *Self, row: Row) void {
            if (row.part == delta_room.part_number) {
                _ = self.delta.mark_gone(row.vertex);
            } else if (self.options.writable) self.parts.items[row.part].gone.insert(row.vertex);
            self.show(&.{row});
        }

        fn apply_rows(self: *Self, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
            const allocator = self.allocator;
            const bytes = try allocator.alignedAlloc(u8, .@"8", log_file.record_bytes(record.payload.len));
            @memcpy(bytes[log_file.record_header_bytes..], record.payload);
            const taken = delta_room.Record.create(allocator, bytes, record.rows) catch |err| return switch (err) {
                error.Damaged => self.unreadable(record, diagnostic),
                error.OutOfMemory => error.OutOfMemory,
            };
            var is_taken = false;
            errdefer if (!is_taken) taken.release(allocator);
            const rows = &taken.rows;
            if (rows.vectors.len != self.shape().row_bytes() * rows.count) return self.unreadable(record, diagnostic);
            if (self.kind) |kind| if (kind != rows.kind) return self.unreadable(record, diagnostic);
            try self.delta.reserve(rows.count);
            if (rows.request.len > 0) {
                const first: u64 = if (rows.kind == .row and rows.count > 0) @intCast(@max(0, rows.ids.numbers[0])) else 0;
                if (record.kind == .rows) try self.requests.add(allocator, rows.request, record.sequence, rows.count, first);
            }
            if (record.kind == .rows) {
                for (0..rows.count) |i| {
                    const row = try self.find_row(rows.ids, i, diagnostic) orelse continue;
                    if (!rows.is_upsert) return diagnostics.damaged(diagnostic, self.log_name.?, "inserts an id in record {d} that a row has", .{record.sequence});
                    self.bury(row);
                }
            }
            self.kind = rows.kind;
            self.has_rows = true;
            if (rows.kind == .row) {
                for (rows.ids.numbers) |id| self.next_row = @max(self.next_row, @as(u64, @intCast(@max(0, id))) + 1);
                if (self.next_row > root_file.next_row_max) return self.unreadable(record, diagnostic);
            }
            self.delta.append(taken);
            is_taken = true;
            self.delta.show(@intCast(self.delta.records.items.len));
        }

        // ---- writing ----
        //
        // The order of a write: ids are looked up, a record is appended to the log, its effect is applied to the writer's state,
        // and searches see it once the record is as durable as `durability` asks.

        /// Rows with these ids are gone when this returns, on the device where durability asks for it. Ids that no row has are
        /// left out.
        pub fn delete(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            try self.check_kind(ids, diagnostic);
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            for (0..ids.len()) |i| {
                const row = try self.find_row(ids, i, diagnostic) orelse continue;
                try self.take_row(&rows, row);
            }
            return self.write_delete(&rows, diagnostic);
        }

        /// The same for rows as a search finds them. Where `layout` is no longer that of the folder nothing is done: Done.outcome.
        pub fn delete_rows(self: *Self, layout: u64, given: []const Row, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            if (layout != self.layout) return .{ .outcome = .stale, .sequence = self.sequence };
            var rows: std.ArrayList(Row) = .empty;
            defer rows.deinit(self.allocator);
            errdefer self.put_back(rows.items);
            for (given) |row| {
                const count: u64 = if (row.part == delta_room.part_number)
                    self.delta.shown_rows
                else if (row.part < self.parts.items.len) self.parts.items[row.part].n else 0;
                if (row.vertex >= count) {
                    diagnostic.argument = "vertices";
                    diagnostic.say("vertex {d} of part {d} is no row", .{ row.vertex, row.part });
                    return error.InvalidArgument;
                }
                try self.take_row(&rows, row);
            }
            return self.write_delete(&rows, diagnostic);
        }

        /// Before the first row any kind of id may come.
        fn check_kind(self: *Self, ids: Ids, diagnostic: *Diagnostic) Error!void {
            if (ids.len() == 0) return;
            const is_string = (self.kind orelse return) == .strings;
            if (is_string == (ids == .strings)) return;
            diagnostic.argument = "ids";
            diagnostic.say("the ids of this index are {s}", .{if (is_string) "strings" else "whole numbers"});
            return error.InvalidArgument;
        }

        fn take_row(self: *Self, rows: *std.ArrayList(Row), row: Row) Error!void {
            try rows.ensureUnusedCapacity(self.allocator, 1);
            if (self.mark(row)) rows.appendAssumeCapacity(row);
        }

        fn mark(self: *Self, row: Row) bool {
            if (row.part == delta_room.part_number) return self.delta.mark_gone(row.vertex);
            return self.parts.items[row.part].gone.insert_new(row.vertex);
        }

        pub fn put_back(self: *Self, rows: []const Row) void {
            for (rows) |row| {
                if (row.part == delta_room.part_number) self.delta.unmark_gone(row.vertex) else self.parts.items[row.part].gone.remove(row.vertex);
            }
        }

        /// The first write makes the folder live. The root that this writes holds none of the rows taken: their record comes behind.
        fn make_live(self: *Self, rows: []const Row, diagnostic: *Diagnostic) Error!void {
            if (self.is_live) return;
            self.put_back(rows);
            defer for (rows) |row| {
                _ = self.mark(row);
            };
            try self.adopt(diagnostic);
        }

        /// With the lock held; `rows` are taken already.
        fn write_delete(self: *Self, rows: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!Done {
            if (rows.items.len > 0) {
                try self.make_live(rows.items, diagnostic);
                const places = try self.allocator.alloc(find.Place, rows.items.len);
                defer self.allocator.free(places);
                for (places, rows.items) |*place, row| place.* = self.id_of(row);
                const bytes = try rows_file.encode_delete(self.allocator, places);
                defer self.allocator.free(bytes);
                try self.log_and_show(bytes, .delete, @intCast(rows.items.len), rows.items, null, diagnostic);
            }
            const count = rows.items.len;
            rows.clearRetainingCapacity(); // written: nothing to put back
            return self.acknowledge(.{ .rows = count, .sequence = self.sequence }, count > 0, diagnostic);
        }

        /// The record goes to the log; then its rows are the delta's, and those that it takes away are dead, at once or when it is
        /// synced. Nothing fails once the record is written.
        fn log_and_show(self: *Self, bytes: []u8, kind: log_file.Kind, count: u32, gone: []const Row, record: ?*delta_room.Record, diagnostic: *Diagnostic) Error!void {
            if (record != null) {
                self.seen.lock();
                defer self.seen.unlock();
                try self.delta.reserve(count);
            }
            const waits = self.options.durability == .sync;
            if (waits) try self.waiting.ensureUnusedCapacity(self.allocator, 1);
            const kept = if (waits) try self.allocator.dupe(Row, gone) else null;
            errdefer if (kept) |rows| self.allocator.free(rows);
            try self.append(bytes, kind, count, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            if (record) |one| self.delta.append(one);
            const records: u32 = @intCast(self.delta.records.items.len);
            if (kept) |rows| {
                self.waiting.appendAssumeCapacity(.{ .sequence = self.sequence, .rows = rows, .records = records });
            } else {
                self.show(gone);
                self.delta.show(records);
                self.shown_sequence = self.sequence;
            }
        }

        fn acknowledge(self: *Self, done: Done, wrote: bool, diagnostic: *Diagnostic) Error!Done {
            if (self.options.durability == .sync) try self.wait_until_synced(done.sequence, diagnostic);
            // Outside a checkpoint nothing is lost where one fails: the log only goes on growing for a while.
            if (wrote and self.position.offset >= self.checkpoint_at and !self.poisoned) {
                var ignored: Diagnostic = .{};
                self.make_checkpoint(&ignored) catch {
                    self.checkpoint_at = 2 * self.position.offset;
                };
            }
            return self.told(done);
        }

        /// The outcome of a call, and the state of the folder after it.
        pub fn told(self: *Self, done: Done) Done {
            var all = done;
            all.durable = self.synced_sequence >= done.sequence;
            all.layout = self.layout;
            all.row_count = self.delta.shown_rows;
            for (self.parts.items) |part| all.row_count += part.n;
            all.delta_bytes = self.delta.bytes;
            all.delta_bytes_max = self.options.delta_bytes;
            return all;
        }

        /// The outcome of a call that changes nothing: it has no rows, or one of its name was done before.
        fn answered(self: *Self, given: *const rows_file.Rows, diagnostic: *Diagnostic) Error!?Done {
            if (given.request.len > 0) if (self.requests.find(given.request)) |before| {
                return try self.acknowledge(.{ .outcome = .repeated, .rows = before.rows, .sequence = before.sequence, .row = before.row }, false, diagnostic);
            };
            return if (given.count > 0) null else try self.acknowledge(.{ .sequence = self.sequence }, false, diagnostic);
        }

        fn check_kind_of_rows(self: *Self, given: *const rows_file.Rows, diagnostic: *Diagnostic) Error!void {
            const kind = self.kind orelse return;
            if (kind == given.kind) return;
            diagnostic.argument = "ids";
            diagnostic.say("the ids of this index are {s}", .{switch (kind) {
                .row => "row numbers, which it gives itself",
                .numbers => "whole numbers",
                .strings => "strings",
            }});
            return error.InvalidArgument;
        }

        /// Takes the rows whose place these take. Where one of them cannot come nothing is taken, and it is told which.
        fn take_former(self: *Self, rows: *const rows_file.Rows, expected: ?Expected, gone: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!?Done {
            const is_numbered = rows.is_numbered();
            for (0..rows.count) |i| {
                const found = try self.find_row(rows.ids, i, diagnostic);
                var refused: ?Outcome = null;
                if (expected) |places| if (found == null or !std.meta.eql(found.?, places.rows[i])) {
                    refused = .stale;
                };
                if (refused == null) if (found) |row| {
                    if (rows.is_upsert) try self.take_row(gone, row) else refused = .duplicate;
                } else if (rows.kind == .row and !is_numbered and !self.gave(rows.ids.numbers[i])) {
                    refused = .no_row_number;
                };
                const outcome = refused orelse continue;
                self.put_back(gone.items);
                gone.clearRetainingCapacity();
                return .{ .outcome = outcome, .row = i, .sequence = self.sequence };
            }
            return null;
        }

        /// With `expected` the rows take the place of those, and nothing is done where one of them is there no more: Done.outcome.
        fn insert_rows(self: *Self, given: rows_file.Rows, expected: ?Expected, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            const count = given.count;
            const allocator = self.allocator;
            if (given.vectors.len != self.shape().row_bytes() * count or given.request.len > root_file.name_bytes_max) {
                diagnostic.argument = "vectors";
                diagnostic.say("{d} rows of {d} bytes were given {d} bytes of vectors", .{ count, self.shape().row_bytes(), given.vectors.len });
                return error.InvalidArgument;
            }
            if (try self.answered(&given, diagnostic)) |done| return done;
            if (expected) |places| {
                std.debug.assert(given.is_upsert and places.rows.len == count);
                if (places.layout != self.layout) return .{ .outcome = .stale, .sequence = self.sequence };
            }
            var rows = given;
            try self.check_kind_of_rows(&given, diagnostic);
            const assigned = if (given.is_numbered()) try allocator.alloc(i64, count) else null;
            defer if (assigned) |numbers| allocator.free(numbers);
            if (assigned) |numbers| {
                for (numbers, 0..) |*number, i| number.* = @intCast(self.next_row + i);
                rows.ids = .{ .numbers = numbers };
            }

            var gone: std.ArrayList(Row) = .empty;
            defer gone.deinit(allocator);
            errdefer self.put_back(gone.items);
            if (try self.take_former(&rows, expected, &gone, diagnostic)) |refused| return refused;
            const bytes = try rows_file.encode(allocator, rows, count);
            const record = delta_room.Record.create(allocator, bytes, count) catch |err| return switch (err) {
                error.Damaged => {
                    diagnostic.argument = "ids";
                    diagnostic.say("offsets of strings do not ascend within their bytes", .{});
                    return error.InvalidArgument;
                },
                error.OutOfMemory => error.OutOfMemory,
            };
            var is_written = false;
            errdefer if (!is_written) record.release(allocator);
            const needed = delta_room.Delta.cost(bytes.len, count);
            if (self.delta.bytes + needed > self.options.delta_bytes) {
                self.put_back(gone.items);
                gone.clearRetainingCapacity();
                record.release(allocator);
                return .{ .outcome = .full, .row = needed, .sequence = self.sequence };
            }
            try self.make_live(gone.items, diagnostic);
            const name = if (given.request.len > 0) try allocator.dupe(u8, given.request) else null;
            errdefer if (!is_written) if (name) |text| allocator.free(text);
            if (name != null) try self.requests.items.ensureUnusedCapacity(allocator, 1);
            try self.log_and_show(bytes, .rows, count, gone.items, record, diagnostic);
            is_written = true;
            const first: u64 = if (assigned != null) self.next_row else 0;
            if (assigned != null) self.next_row += count;
            self.kind = rows.kind;
            self.has_rows = true;
            if (name) |text| self.requests.add_owned(allocator, text, self.sequence, count, first);
            const replaced = gone.items.len;
            gone.clearRetainingCapacity();
            return self.acknowledge(.{ .rows = count, .replaced = replaced, .row = first, .sequence = self.sequence }, true, diagnostic);
        }

        /// Rows that are there when this returns, on the device where durability asks for it: all or none.
        pub fn insert(self: *Self, rows: rows_file.Rows, diagnostic: *Diagnostic) Error!Done {
            const done = try self.insert_rows(rows, null, diagnostic);
            self.link_after(done);
            return done;
        }

        /// The same in the place of rows that are still where the caller found them; else nothing is done: Done.outcome.
        pub fn update(self: *Self, rows: rows_file.Rows, expected: Expected, diagnostic: *Diagnostic) Error!Done {
            const done = try self.insert_rows(rows, expected, diagnostic);
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

        /// Whether the index gave a row this number.
        pub fn gave(self: *const Self, number: i64) bool {
            if (number < 0 or number >= self.next_row) return false;
            for (self.reserved.items) |one| if (one.holds(number)) return false;
            return true;
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
            if (self.is_live) try self.remove_litter(diagnostic);
        }

        /// The name of a part's folder that is still to be made; no other gets it.
        pub fn next_part(self: *Self, buffer: *[32]u8) []const u8 {
            self.mutex.lock();
            defer self.mutex.unlock();
            const name = std.fmt.bufPrint(buffer, "part-{x:0>16}", .{self.next_file}) catch unreachable; // 21 bytes
            self.next_file += 1;
            return name;
        }

        fn check_writable(self: *Self, diagnostic: *Diagnostic) Error!void {
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

        fn show_synced(self: *Self) void {
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
        fn wait_until_synced(self: *Self, sequence: u64, diagnostic: *Diagnostic) Error!void {
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
            try self.make_checkpoint(diagnostic);
        }

        /// A writer's end: everything synced, and a last record that says so, by which damage to any other shows.
        pub fn finish(self: *Self, diagnostic: *Diagnostic) Error!void {
            self.mutex.lock();
            defer self.mutex.unlock();
            if (!self.options.writable or !self.begun or !self.is_live) return;
            if (self.poisoned) {
                // Every caller that waited for a sync has its error.
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
            self.remove_litter(diagnostic) catch {}; // the next writer does it
        }

        // ---- calls of more rows than the delta has room for ----
        //
        // The rows come as a part, and never pass the delta or the log.
        //
        // The caller reserves, makes an ordinary index of the rows while others write and search, and comes back. Then the ids
        // are compared with the rows of that moment, and one root names the part, the dead rows whose place it takes, and the name
        // of the call. Dead rows of the delta stand in the new log behind those that it carries over, so the root alone says it all.

        /// Prepares a call that makes a part of its rows before it brings them; their vectors stay with it. Nothing is
        /// done where it could not come now: Done.outcome.
        /// The folder is live from here on. Numbers are given out for good: also where the call fails no row gets them.
        pub fn reserve(self: *Self, given: rows_file.Rows, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            try self.check_writable(diagnostic);
            if (try self.answered(&given, diagnostic)) |done| return done;
            try self.check_kind_of_rows(&given, diagnostic);
            const numbered = given.is_numbered();
            if (!numbered and (!given.is_upsert or given.kind == .row)) {
                // It is looked at again when the part is there; but who cannot come now need not make one.
                var gone: std.ArrayList(Row) = .empty;
                defer gone.deinit(self.allocator);
                defer self.put_back(gone.items);
                if (try self.take_former(&given, null, &gone, diagnostic)) |refused| return refused;
            }
            if (!self.is_live) try self.adopt(diagnostic);
            const first = self.next_row;
            if (numbered) {
                try self.reserved.append(self.allocator, .{ .first = first, .count = given.count });
                self.next_row += given.count;
            }
            return self.told(.{ .row = first, .sequence = self.sequence });
        }

        /// The rows of that part are there when this returns, on the device: all or none.
        pub fn insert_part(self: *Self, call: Call, diagnostic: *Diagnostic) Error!Done {
            const allocator = self.allocator;
            const count = call.rows.count;
            if (call.ids.len() != count or count == 0 or (call.ids == .strings) != (call.rows.kind == .strings)) {
                diagnostic.argument = "ids";
                diagnostic.say("a part of {d} ids was made for {d} rows", .{ call.ids.len(), count });
                return error.InvalidArgument;
            }
            var finder_bytes: ?[]align(4) u8 = try self.write_finder(call.path, call.ids, diagnostic);
            defer if (finder_bytes) |bytes| allocator.free(bytes);
            self.mutex.lock();
            defer self.mutex.unlock();
            while (self.syncing) self.changed.wait(&self.mutex); // from here on the lock is kept
            try self.check_writable(diagnostic);
            if (try self.answered(&call.rows, diagnostic)) |done| return done;
            try self.check_kind_of_rows(&call.rows, diagnostic);
            const numbered = call.rows.is_numbered();
            const reserved = if (numbered) try self.reservation_of(&call, diagnostic) else null;
            var gone: std.ArrayList(Row) = .empty;
            defer gone.deinit(allocator);
            errdefer self.put_back(gone.items);
            if (!numbered) if (try self.take_former(&call.rows, null, &gone, diagnostic)) |refused| return refused;

            var parts: std.ArrayList(Part) = .empty;
            errdefer parts.deinit(allocator);
            try parts.ensureTotalCapacity(allocator, self.parts.items.len + 1);
            parts.appendSliceAssumeCapacity(self.parts.items);
            parts.appendAssumeCapacity(try self.new_part(call.path, call.uuid, count, null));
            const made = &parts.items[self.parts.items.len];
            errdefer made.deinit(self);
            made.ids = call.ids;
            made.finder_owned = finder_bytes;
            finder_bytes = null;
            made.finder = find.Finder.parse(made.finder_owned.?, count) catch unreachable; // as we just made it

            const before = .{ self.sequence, self.kind, self.has_rows, self.requests };
            self.requests = try self.requests.with(allocator, .{ .name = call.rows.request, .sequence = self.sequence + 1, .rows = count, .row = call.first });
            errdefer {
                // If the root may be on the device nonetheless, the writer is poisoned and shows the former state.
                self.requests.deinit(allocator);
                self.sequence, self.kind, self.has_rows, self.requests = before;
            }
            self.sequence += 1;
            self.kind = call.rows.kind;
            self.has_rows = true;
            try self.write_new_root(parts.items, self.delta, diagnostic);
            var requests = before[3];
            requests.deinit(allocator);
            var former = self.parts;
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.parts = parts;
                self.show_all(); // rows that waited for their sync, too: the new root holds them
            }
            former.deinit(allocator);
            if (reserved) |i| _ = self.reserved.swapRemove(i);
            // No row has another number than before: whoever read some still finds them.
            return self.told(.{ .rows = count, .replaced = gone.items.len, .row = call.first, .sequence = self.sequence });
        }

        /// Which of the reservations is that of the call.
        fn reservation_of(self: *Self, call: *const Call, diagnostic: *Diagnostic) Error!usize {
            for (self.reserved.items, 0..) |one, i| {
                if (one.first != call.first or one.count != call.rows.count) continue;
                for (call.ids.numbers) |number| {
                    if (!one.holds(number)) break;
                } else return i;
            }
            diagnostic.argument = "ids";
            diagnostic.say("{d} numbers from {d} on were not reserved", .{ call.rows.count, call.first });
            return error.InvalidArgument;
        }

        // ---- a part in the place of others ----
        //
        // A part takes the place of the parts and rows that it was made of. Its maker takes a view, writes an ordinary index of
        // the rows that live in it, and comes back. Rows deleted or replaced meanwhile are dead in the new part from its first
        // moment, and rows that came meanwhile stay in the delta. One root, written as at every checkpoint, does all of it.

        /// A part, whose files are complete, takes the place of those parts and rows of a view that it was made of.
        /// The ids are borrowed until the folder closes or another fold takes the part away.
        pub fn fold(self: *Self, what: Fold, diagnostic: *Diagnostic) Error!Done {
            var finder_bytes: ?[]align(4) u8 = null;
            errdefer if (finder_bytes) |bytes| self.allocator.free(bytes);
            if (what.part) |part| finder_bytes = try self.write_finder(part.path, part.ids, diagnostic);
            self.mutex.lock();
            defer self.mutex.unlock();
            while (self.syncing) self.changed.wait(&self.mutex); // from here on the lock is kept
            try self.check_writable(diagnostic);
            if (!self.is_live) {
                diagnostic.say("nothing was written to this index: there is nothing to fold", .{});
                return error.InvalidArgument;
            }
            const numbers = try self.allocator.alloc(u32, what.parts.len);
            defer self.allocator.free(numbers);
            if (self.is_stale(&what, numbers)) {
                if (finder_bytes) |bytes| self.allocator.free(bytes);
                finder_bytes = null;
                return .{ .outcome = .stale, .sequence = self.sequence };
            }
            var parts: std.ArrayList(Part) = .empty;
            errdefer parts.deinit(self.allocator);
            try parts.ensureTotalCapacity(self.allocator, self.parts.items.len + 1);

            // The place of its first source, so that parts stay in the order of their age.
            const at = if (numbers.len > 0) numbers[0] else self.parts.items.len;
            for (self.parts.items, 0..) |part, i| {
                if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) == null) parts.appendAssumeCapacity(part);
            }
            var made: ?*Part = null;
            if (what.part) |part| {
                const n = part.ids.len();
                var one = try self.new_part(part.path, part.uuid, n, null);
                errdefer one.deinit(self);
                one.ids = part.ids;
                one.finder_owned = finder_bytes;
                finder_bytes = null;
                one.finder = find.Finder.parse(one.finder_owned.?, n) catch unreachable; // as we just made it
                try self.bury_taken(&one, &what, numbers, diagnostic);
                const place = @min(at, parts.items.len);
                parts.insertAssumeCapacity(place, one);
                made = &parts.items[place];
            }
            errdefer if (made) |one| one.deinit(self);
            const old_delta = self.delta;
            const delta = if (what.with_delta) try old_delta.after(@intCast(what.view.records.len)) else old_delta.hold();
            errdefer delta.release();

            try self.write_new_root(parts.items, delta, diagnostic);
            var old_parts = self.parts;
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.parts = parts;
                self.delta = delta;
                self.layout += 1;
                self.delta_layout += @intFromBool(what.with_delta);
                self.show_all(); // rows that waited for their sync, too: the new root holds them
            }
            old_delta.release();
            for (old_parts.items, 0..) |*part, i| {
                if (std.mem.indexOfScalar(u32, numbers, @intCast(i)) != null) part.deinit(self);
            }
            old_parts.deinit(self.allocator);
            self.remove_litter(diagnostic) catch {}; // the next sweep does it
            return self.told(.{ .sequence = self.sequence });
        }

        /// Whether another fold took one of its sources; else the number that each of its parts has by now. Folds of other parts, and
        /// of the delta, may be under way together: no folder of a part gets the name of another.
        fn is_stale(self: *Self, what: *const Fold, numbers: []u32) bool {
            for (what.parts, numbers) |of_view, *number| {
                const path = what.view.parts[of_view].path;
                number.* = for (self.parts.items, 0..) |*part, i| {
                    if (std.mem.eql(u8, part.path, path)) break @intCast(i);
                } else return true;
            }
            return what.with_delta and what.view.delta_layout != self.delta_layout;
        }

        /// Rows of the sources that were taken and are gone by now are dead in the new part.
        fn bury_taken(self: *Self, part: *Part, what: *const Fold, numbers: []const u32, diagnostic: *Diagnostic) Error!void {
            var taken = what.taken;
            for (numbers) |number| {
                const source = &self.parts.items[number];
                const words = source.gone.words;
                defer taken = taken[words.len..];
                for (words, taken[0..words.len], 0..) |gone, word, w| {
                    var new = gone & word;
                    while (new != 0) : (new &= new - 1)
                        try part.bury(source.ids.?, 64 * w + @ctz(new), diagnostic);
                }
            }
            if (!what.with_delta) return;
            for (0..what.view.rows) |i| {
                const row: u32 = @intCast(i);
                if (!self.delta.gone.bits.isSet(row) or what.view.dead.contains(row)) continue;
                const place = self.delta.place_of(row);
                try part.bury(place.record.rows.ids, place.at, diagnostic);
            }
        }

        // ---- columns ----
        //
        // Columns that come to an index that has rows. What stands in parts and in the log stays as it is: a part, and a record that
        // brought rows, may lack the last columns of the schema, and whoever reads it knows what its rows have in them. So one root
        // with another schema is all that changes, written as at every checkpoint.

        /// Other columns, where the schema is still of this version: one root, which is on the device when this returns.
        pub fn set_schema(self: *Self, text: []const u8, version: u64, diagnostic: *Diagnostic) Error!Done {
            self.mutex.lock();
            defer self.mutex.unlock();
            while (self.syncing) self.changed.wait(&self.mutex); // from here on the lock is kept
            try self.check_writable(diagnostic);
            if (self.schema_version != version) return .{ .outcome = .stale, .sequence = self.sequence };
            if (text.len > schema_bytes_max) {
                diagnostic.say("columns and what they begin with take {d} bytes in the root, at most {d} fit", .{ text.len, schema_bytes_max });
                return error.InvalidArgument;
            }
            const before = self.schema;
            const had_columns = self.has_columns;
            const copy = try self.allocator.dupe(u8, text);
            self.schema = copy;
            self.has_columns = true;
            self.write_root(diagnostic) catch |err| {
                // If the root may be on the device nonetheless, the writer is poisoned and shows the former state.
                self.schema = before;
                self.has_columns = had_columns;
                self.allocator.free(copy);
                return err;
            };
            if (before) |one| self.allocator.free(one);
            self.seen.lock();
            defer self.seen.unlock();
            self.schema_version += 1;
            return .{ .sequence = self.sequence, .durable = true };
        }

        fn write_root(self: *Self, diagnostic: *Diagnostic) Error!void {
            if (!self.is_live) return self.adopt(diagnostic);
            try self.write_new_root(self.parts.items, self.delta, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            self.show_all(); // rows that waited for their sync, too: the new root holds them
        }

        // ---- checkpoints ----
        //
        // Folding the log into files that a new root names: tombstones of every part, and a log that begins behind them.
        //
        // The order is what matters. New files and their names are on the device before a root names them; the root takes the old
        // one's place by one rename; the old files go only once that rename is on the device. Where the rename, or the sync behind
        // it, fails, nobody knows which root the device has: the writer is poisoned.

        /// With the lock held.
        fn make_checkpoint(self: *Self, diagnostic: *Diagnostic) Error!void {
            while (self.syncing) self.changed.wait(&self.mutex);
            if (self.poisoned) return self.check_writable(diagnostic);
            if (self.is_live and self.log != null and self.position.offset == self.log_begin) return; // nothing to fold
            try self.write_new_root(self.parts.items, self.delta, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            self.show_all();
        }

        /// Also where the log holds nothing new; no sync is under way. `given` and `delta` are what the root is to hold. They may be
        /// others than views see: once this has returned, whoever called it shows them, and with them all that was written.
        fn write_new_root(self: *Self, given: []Part, delta: *const Delta, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const scratch = arena.allocator();

            const parts = try scratch.alloc(root_file.Part, given.len);
            const counts = try scratch.alloc(u64, parts.len);
            var made: std.ArrayList([]const u8) = .empty;
            var old: std.ArrayList([]const u8) = .empty;
            errdefer if (!self.poisoned) {
                for (made.items) |name| diagnostics.discard(store, name);
            };
            var next_file = self.next_file;
            for (given, parts, counts) |*part, *named, *count| {
                count.* = part.gone.count();
                named.* = .{ .path = part.path, .uuid = part.uuid, .n = part.n, .dead = part.file };
                if (count.* == part.file_count) continue;
                const name = try numbered_name(scratch, &next_file, "dead", "bin");
                try made.append(scratch, name);
                const bytes = try dead_file.encode(scratch, part.uuid, &part.gone);
                try diagnostics.write_file(store, name, bytes, diagnostic);
                if (part.file) |before| try old.append(scratch, try scratch.dupe(u8, before));
                named.dead = name;
            }
            const log_name = try numbered_name(self.allocator, &next_file, "log", "velolog");
            errdefer self.allocator.free(log_name);
            try made.append(scratch, try scratch.dupe(u8, log_name));
            var header: log_file.Header = .{ .uuid = undefined, .salt = self.prng.next(), .first_sequence = self.sequence + 1 };
            _ = std.fmt.hexToBytes(&header.uuid, &self.uuid) catch return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
            const log = store.create(log_name) catch |err| return file_error(diagnostic, log_name, "create", err);
            errdefer store.close(log);
            const position = try self.begin_log(delta, scratch, log, log_name, &header, diagnostic);
            try diagnostics.sync_folder(store, ".", diagnostic);

            const requests = try scratch.alloc(root_file.Request, self.requests.items.items.len);
            for (requests, self.requests.items.items) |*named, one| named.* = .{ .request = one.name, .sequence = one.sequence, .rows = one.rows, .row = one.row };
            const root: root_file.Root = .{
                .uuid = &self.uuid,
                .generation = self.generation + 1,
                .dim = self.dim,
                .metric = self.metric,
                .dtype = @tagName(self.dtype),
                .ids = if (self.kind) |kind| @tagName(kind) else null,
                .schema = self.schema,
                .built = self.built,
                .readers_understand = root_file.understood(self.has_rows or parts.len != 1, self.has_columns),
                .writers_understand = root_file.understood(self.has_rows or parts.len != 1, self.has_columns),
                .sequence = self.sequence,
                .next_row = self.next_row,
                .next_file = next_file,
                .parts = parts,
                .first_log = log_name,
                .requests = requests,
            };
            // Names are copied before the rename: from there on nothing may fail for want of memory.
            const kept = try scratch.alloc(?[]const u8, parts.len);
            @memset(kept, null);
            errdefer for (kept) |name| if (name) |one| self.allocator.free(one);
            for (parts, kept) |part, *name| name.* = if (part.dead) |file| try self.allocator.dupe(u8, file) else null;
            try made.append(scratch, temporary);
            try diagnostics.write_file(store, temporary, try root_file.write(scratch, &root), diagnostic);
            store.rename(temporary, root_file.file_name) catch |err| {
                self.poisoned = true;
                return file_error(diagnostic, root_file.file_name, "replace", err);
            };
            diagnostics.sync_folder(store, ".", diagnostic) catch |err| {
                self.poisoned = true;
                return err;
            };

            if (self.log) |file| store.close(file);
            if (self.log_name) |name| {
                try_append(scratch, &old, name);
                self.allocator.free(name);
            }
            for (given, kept, counts) |*part, name, count| {
                if (part.file) |before| self.allocator.free(before);
                part.file = name;
                part.file_count = count;
            }
            self.log_name = log_name;
            self.log = log;
            self.log_header = header;
            self.position = position;
            self.log_begin = position.offset;
            self.last_is_promise = position.offset > log_file.header_bytes;
            self.generation = root.generation;
            self.next_file = next_file;
            self.root_sequence = self.sequence;
            self.synced_sequence = self.sequence;
            self.synced_offset = position.offset;
            self.checkpoint_at = self.checkpoint_bytes(given);
            self.changed.broadcast();
            for (old.items) |name| diagnostics.discard(store, name);
        }

        /// How long the log may grow: as long again as what it carries over, so that this is not written over and over.
        fn checkpoint_bytes(self: *Self, parts: []const Part) u64 {
            var rows: u64 = 0;
            for (parts) |part| rows += part.n;
            const most = if (self.options.checkpoint_bytes > 0) self.options.checkpoint_bytes else @max(least_bytes, rows / 16);
            return if (self.log_begin == log_file.header_bytes) most else self.log_begin + @max(most, self.log_begin);
        }

        /// The new log's header, and behind it the rows that no part holds. A promise ends them: all of it is on the device before a
        /// root names it, so damage there is never taken for a torn end.
        fn begin_log(self: *Self, delta: *const Delta, scratch: std.mem.Allocator, log: Store.File, name: []const u8, header: *const log_file.Header, diagnostic: *Diagnostic) Error!log_file.Position {
            const store = self.store;
            var position: log_file.Position = .begin(header);
            store.write(log, &header.encode(), 0) catch |err| return file_error(diagnostic, name, "write", err);
            for (delta.records.items) |record| {
                const offset = position.offset;
                log_file.seal(record.bytes, .carried, record.rows.count, 0, &position);
                store.write(log, record.bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            if (delta.gone.count > 0) {
                const size = std.mem.alignForward(usize, 4 * @as(usize, delta.gone.count), 8);
                const bytes = try scratch.alloc(u8, log_file.record_bytes(size));
                @memset(bytes, 0);
                var at: usize = log_file.record_header_bytes;
                for (0..delta.rows) |row| {
                    if (!delta.gone.bits.isSet(row)) continue;
                    std.mem.writeInt(u32, bytes[at..][0..4], @intCast(row), .little);
                    at += 4;
                }
                const offset = position.offset;
                log_file.seal(bytes, .buried, delta.gone.count, 0, &position);
                store.write(log, bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            if (position.offset > log_file.header_bytes) {
                var promise: [log_file.record_header_bytes]u8 align(8) = @splat(0);
                const offset = position.offset;
                log_file.seal(&promise, .promise, 0, offset, &position);
                store.write(log, &promise, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            store.sync(log) catch |err| return file_error(diagnostic, name, "sync", err);
            return position;
        }

        /// A writer takes over what it finds: a torn end is put aside, the records of the log are written anew, since a device may
        /// have lost what its cache still shows, and litter goes.
        fn take_over(self: *Self, end: log_file.End, diagnostic: *Diagnostic) Error!void {
            if (end == .torn) try self.put_aside(diagnostic);
            self.log_begin = 0;
            if (self.position.offset > log_file.header_bytes or end == .torn) {
                try self.make_checkpoint(diagnostic);
            } else {
                // The root may stand there by a rename that no sync has seen, and what it no longer names goes below: not before
                // the root is there for good.
                try diagnostics.sync_folder(self.store, ".", diagnostic);
                self.log = self.store.open_file(self.log_name.?, .read_write) catch |err| return file_error(diagnostic, self.log_name.?, "open", err);
                self.synced_offset = self.position.offset;
                self.synced_sequence = self.sequence;
                self.log_begin = self.position.offset;
                self.checkpoint_at = self.checkpoint_bytes(self.parts.items);
            }
            try self.remove_old_names(diagnostic);
            try self.remove_litter(diagnostic);
        }

        fn put_aside(self: *Self, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            const bytes = try diagnostics.read_file(self.allocator, store, self.log_name.?, std.math.maxInt(u63), diagnostic) orelse
                return diagnostics.damaged(diagnostic, self.log_name.?, "is missing", .{});
            defer self.allocator.free(bytes);
            var buffer: [80]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}.torn", .{self.log_name.?}) catch unreachable; // root.zig limits it
            try diagnostics.write_file(store, name, bytes[@intCast(self.position.offset)..], diagnostic);
            try diagnostics.sync_folder(store, ".", diagnostic);
        }

        /// Files of ours that no root names: a checkpoint or an adoption was killed. Of torn ends the newest is kept.
        fn remove_litter(self: *Self, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
            var newest: []const u8 = "";
            for (names) |name| {
                if (is_ours(name, "log-", ".velolog.torn") and std.mem.order(u8, name, newest) == .gt) newest = name;
            }
            for (names) |name| {
                if (self.is_named(name) or std.mem.eql(u8, name, newest)) continue;
                if (is_ours(name, "part-", "")) {
                    store.remove_unheld(name) catch {};
                } else if (std.mem.eql(u8, name, temporary) or is_ours(name, "dead-", ".bin") or is_ours(name, "log-", ".velolog") or is_ours(name, "log-", ".velolog.torn"))
                    diagnostics.discard(store, name);
            }
        }

        fn is_named(self: *Self, name: []const u8) bool {
            if (std.mem.eql(u8, name, self.log_name.?)) return true;
            for (self.parts.items) |part| {
                if (std.mem.eql(u8, name, part.path)) return true;
                if (part.file) |file| if (std.mem.eql(u8, name, file)) return true;
            }
            return false;
        }

        // ---- the first write ----
        //
        // From an index as it was built to live data: its files get a second name in a part, live.json names the part, and the
        // names in the folder itself go, the manifest first. An older velo then finds no index rather than a wrong one.
        //
        // Killed before live.json is there, the folder is the index it was, and what stands beside is litter; killed after, the
        // next writer takes the rest of the old names away.

        /// An index without live.json: one part, the folder itself.
        pub fn describe(self: *Self, diagnostic: *Diagnostic) Error!void {
            var parsed = try self.read_manifest(manifest.file_name, diagnostic);
            defer parsed.deinit();
            const found = &parsed.value;
            for (self.parts.items) |*part| {
                if (part.n == found.n and std.mem.eql(u8, part.uuid, found.uuid)) return; // as before
            }
            if (self.begun) return diagnostics.replaced(diagnostic);
            self.dim = found.dim;
            self.dtype = scan.Dtype.of(found.dtype) orelse return diagnostics.damaged(diagnostic, manifest.file_name, "names a type that is none", .{});
            const metric = try self.allocator.dupe(u8, found.metric);
            self.allocator.free(self.metric);
            self.metric = metric;
            try self.add_part("", found.uuid, found.n, null);
        }

        pub fn read_manifest(self: *Self, name: []const u8, diagnostic: *Diagnostic) Error!manifest.Parsed {
            const text = try diagnostics.read_file(self.allocator, self.store, name, manifest.bytes_max, diagnostic) orelse {
                diagnostic.say("the folder holds no index", .{});
                return error.NotAnIndex;
            };
            defer self.allocator.free(text);
            return manifest.parse(self.allocator, text) catch |err| switch (err) {
                error.BadManifest => diagnostics.damaged(diagnostic, manifest.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, manifest.file_name),
                error.OlderVersion => {
                    diagnostic.in_file(manifest.file_name, "the index was written by an older velo: build it again", .{});
                    return error.UnsupportedVersion;
                },
                error.OutOfMemory => error.OutOfMemory,
            };
        }

        /// The first write, with the lock held: when this returns the folder is live and its log empty.
        fn adopt(self: *Self, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            const part = &self.parts.items[0];
            if (part.finder == null) try self.open_finder(part, diagnostic);
            self.prng.source.fill(self.uuid[0..16]);
            const raw: [16]u8 = self.uuid[0..16].*;
            _ = std.fmt.bufPrint(&self.uuid, "{x}", .{&raw}) catch unreachable;
            const built = try self.allocator.dupe(u8, part.uuid);
            if (self.built) |before| self.allocator.free(before);
            self.built = built;
            self.next_file = 2;
            var adopted = part.*;
            adopted.path = try self.allocator.dupe(u8, "part-0000000000000001");
            errdefer if (!self.is_live) self.allocator.free(adopted.path);
            self.make_part(adopted.path, diagnostic) catch |err| {
                store.remove_folder(adopted.path) catch {}; // litter: the next try takes it away
                return err;
            };
            self.write_new_root((&adopted)[0..1], self.delta, diagnostic) catch |err| {
                if (!self.poisoned) store.remove_folder(adopted.path) catch {};
                return err;
            };
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.allocator.free(part.path);
                part.* = adopted;
                self.show_all();
            }
            self.is_live = true;
            self.remove_old_names(diagnostic) catch |err| {
                self.poisoned = true;
                return err;
            };
        }

        fn make_part(self: *Self, path: []const u8, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var parsed = try self.read_manifest(manifest.file_name, diagnostic);
            defer parsed.deinit();
            if (!std.mem.eql(u8, parsed.value.uuid, self.parts.items[0].uuid)) {
                diagnostic.say("the index was replaced by another one: open it again", .{});
                return error.Unsupported;
            }
            store.remove_folder(path) catch |err| return file_error(diagnostic, path, "remove", err);
            store.make_folder(path) catch |err| return file_error(diagnostic, path, "create", err);
            for (parsed.value.files) |file| try self.link_into(path, file.name, diagnostic);
            try self.link_into(path, manifest.file_name, diagnostic);
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, find.file_name }) catch unreachable; // our own short names
            try diagnostics.write_file(store, name, self.parts.items[0].finder_owned.?, diagnostic);
            try diagnostics.sync_folder(store, path, diagnostic);
        }

        fn link_into(self: *Self, path: []const u8, name: []const u8, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var buffer: [512]u8 = undefined;
            const to = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, name }) catch
                return diagnostics.damaged(diagnostic, manifest.file_name, "names a file whose name is too long", .{});
            store.link(name, to) catch |err| switch (@as(anyerror, err)) {
                error.FileNotFound => return diagnostics.damaged(diagnostic, name, "is missing from the index", .{}),
                // File systems without hard links.
                error.PermissionDenied, error.AccessDenied => {
                    diagnostic.in_file(name, "the file system gives {s} no second name, which live data needs", .{name});
                    return error.Unsupported;
                },
                else => return file_error(diagnostic, name, "link", err),
            };
        }

        /// The manifest is gone for good before anything is acknowledged; the other names may go whenever.
        fn remove_old_names(self: *Self, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            store.remove(manifest.file_name) catch |err| switch (@as(anyerror, err)) {
                error.FileNotFound => {},
                else => return file_error(diagnostic, manifest.file_name, "remove", err),
            };
            try diagnostics.sync_folder(store, ".", diagnostic);
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
            if (self.parts.items.len == 0) return;
            var buffer: [512]u8 = undefined;
            for (names) |name| {
                const inside = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ self.parts.items[0].path, name }) catch continue;
                if (store.exists(inside) catch false) diagnostics.discard(store, name);
            }
        }

        /// The file of a part whose other files are complete; all of it is on the device when this returns.
        fn write_finder(self: *Self, path: []const u8, ids: Ids, diagnostic: *Diagnostic) Error![]align(4) u8 {
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, find.file_name }) catch {
                diagnostic.say("the name of a part is too long", .{});
                return error.InvalidArgument;
            };
            const bytes = try find.encode(self.allocator, ids);
            errdefer self.allocator.free(bytes);
            try diagnostics.write_file(self.store, name, bytes, diagnostic);
            try diagnostics.sync_folder(self.store, path, diagnostic);
            return bytes;
        }

        // ---- what searches see ----

        /// A copy of the dead rows of a part; false, and nothing copied, where none is.
        pub fn copy_dead(self: *Self, part: usize, out: *BitSet) bool {
            self.mutex.lock();
            defer self.mutex.unlock();
            const one = &self.parts.items[part];
            if (one.dead_count == 0) return false;
            @memcpy(out.words, one.dead.words);
            return true;
        }

        /// The view of a search that begins now.
        pub fn take_view(self: *Self) error{OutOfMemory}!*View {
            self.seen.lock();
            defer self.seen.unlock();
            const allocator = self.allocator;
            const view = try allocator.create(View);
            errdefer allocator.destroy(view);
            const parts = try allocator.alloc(delta_room.PartView, self.parts.items.len);
            var size: usize = 0;
            for (self.parts.items) |part| size += part.path.len + part.uuid.len;
            const names = try allocator.alloc(u8, size);
            errdefer allocator.free(names);
            var name_bytes: std.ArrayList(u8) = .initBuffer(names);
            var made: usize = 0;
            errdefer {
                for (parts[0..made]) |*part| if (part.dead) |*set| set.deinit(allocator);
                allocator.free(parts);
            }
            for (parts, self.parts.items) |*part, *of| {
                part.* = .{ .path = delta_room.append(&name_bytes, of.path), .uuid = delta_room.append(&name_bytes, of.uuid), .n = of.n, .dead = null };
                if (of.dead_count > 0) {
                    part.dead = try BitSet.init(allocator, @intCast(of.n));
                    @memcpy(part.dead.?.words, of.dead.words);
                }
                made += 1;
            }
            const delta: *Delta = self.delta;
            const records = try allocator.dupe(*delta_room.Record, delta.records.items[0..delta.shown_records]);
            errdefer allocator.free(records);
            var dead = try BitSet.init(allocator, delta.shown_rows);
            delta_room.copy_bits(&dead, &delta.dead.bits);
            view.* = .{
                .allocator = allocator,
                .layout = self.layout,
                .delta_layout = self.delta_layout,
                .sequence = self.shown_sequence,
                .schema_version = self.schema_version,
                .parts = parts,
                .names = names,
                .delta = delta.hold(),
                .records = records,
                .rows = delta.shown_rows,
                .dead = dead,
                .shape = self.shape(),
            };
            return view;
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

fn try_append(scratch: std.mem.Allocator, names: *std.ArrayList([]const u8), name: []const u8) void {
    const copy = scratch.dupe(u8, name) catch return; // then it is litter
    names.append(scratch, copy) catch {};
}

fn numbered_name(allocator: std.mem.Allocator, next_file: *u64, comptime stem: []const u8, comptime suffix: []const u8) error{OutOfMemory}![]u8 {
    const name = try std.fmt.allocPrint(allocator, stem ++ "-{x:0>16}." ++ suffix, .{next_file.*});
    next_file.* += 1;
    return name;
}

/// Whether this is a name as velo numbers them. All others are somebody else's.
fn is_ours(name: []const u8, comptime stem: []const u8, comptime suffix: []const u8) bool {
    if (name.len != stem.len + 16 + suffix.len) return false;
    if (!std.mem.startsWith(u8, name, stem) or !std.mem.endsWith(u8, name, suffix)) return false;
    return std.mem.indexOfNone(u8, name[stem.len..][0..16], "0123456789abcdef") == null;
}

/// A folder with live data from nothing: no part, no row, an empty log.
pub const CreateOptions = struct {
    dim: u32,
    metric: scan.Metric,
    dtype: scan.Dtype,
    /// Whatever the caller wants to find again as the columns of its metadata.
    schema: ?[]const u8 = null,
    seed: ?u64 = null,
};

/// The folder is there, and holds nothing. Its root comes last, so a folder in which this was killed holds no index.
pub fn create(allocator: std.mem.Allocator, store: anytype, options: CreateOptions, diagnostic: *Diagnostic) Error!void {
    var prng = base.Prng.init(options.seed orelse std.crypto.random.int(u64));
    var raw: [16]u8 = undefined;
    prng.source.fill(&raw);
    const uuid = std.fmt.bytesToHex(raw, .lower);
    const header: log_file.Header = .{ .uuid = raw, .salt = prng.next(), .first_sequence = 1 };
    const log_name = "log-0000000000000001.velolog";
    try diagnostics.write_file(store, log_name, &header.encode(), diagnostic);
    try diagnostics.sync_folder(store, ".", diagnostic);
    const root: root_file.Root = .{
        .uuid = &uuid,
        .generation = 1,
        .dim = options.dim,
        .metric = @tagName(options.metric),
        .dtype = @tagName(options.dtype),
        .schema = options.schema,
        .sequence = 0,
        .next_row = 0,
        .next_file = 2,
        .parts = &.{},
        .first_log = log_name,
    };
    const text = try root_file.write(allocator, &root);
    defer allocator.free(text);
    try diagnostics.write_file(store, temporary, text, diagnostic);
    store.rename(temporary, root_file.file_name) catch |err| return file_error(diagnostic, root_file.file_name, "replace", err);
    try diagnostics.sync_folder(store, ".", diagnostic);
}
