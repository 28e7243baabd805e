//! Checkpoints: folding the log into files that a new manifest names: tombstones of every segment, and a log that begins behind them.
//!
//! The order is what matters. New files and their names are on the device before a manifest names them; the manifest takes the old
//! one's place by one rename; the old files go only once that rename is on the device. If the rename or the sync
//! after it fails, it is unknown which manifest the device has: the writer is poisoned.
const std = @import("std");
const diagnostics = @import("diagnostic.zig");
const dead_file = @import("deleted.zig");
const delta_room = @import("delta.zig");
const file_names = @import("file_names.zig");
const manifest_file = @import("manifest.zig");
const rows_file = @import("rows.zig");
const wal_file = @import("wal.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Delta = delta_room.Delta;
const file_error = diagnostics.file_error;
const is_ours = file_names.is_ours;
const numbered_name = file_names.numbered_name;
const temporary = file_names.temporary;

const least_bytes = 4 << 20;

pub fn Checkpoints(comptime Live: type) type {
    return struct {
        /// With the lock held.
        pub fn make_checkpoint(self: *Live, diagnostic: *Diagnostic) Error!void {
            while (self.syncing) self.changed.wait(&self.mutex);
            try self.check_sound(diagnostic);
            if (self.is_sound() and self.position.offset == self.wal_begin) return; // nothing to commit
            try write_new_manifest(self, self.segments.items, self.delta, self.flushes, diagnostic);
            self.seen.lock();
            defer self.seen.unlock();
            self.show_all();
        }

        /// Also writes if the log holds nothing new; no sync is under way. The manifest gets `given` and `delta`, which may differ
        /// from those that views see: the caller publishes them, and with them all writes, once this has returned.
        pub fn write_new_manifest(self: *Live, given: []Live.Segment, delta: *const Delta, flushes: u64, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const scratch = arena.allocator();

            const segments = try scratch.alloc(manifest_file.Segment, given.len);
            const counts = try scratch.alloc(u64, segments.len);
            var made: std.ArrayList([]const u8) = .empty;
            var old: std.ArrayList([]const u8) = .empty;
            errdefer if (!self.poisoned) {
                for (made.items) |name| diagnostics.discard(store, name);
            };
            var next_file = self.next_file;
            for (given, segments, counts) |*segment, *named, *count| {
                count.* = segment.pending_delete.count();
                named.* = .{ .path = segment.path, .uuid = segment.uuid, .n = segment.n, .dead = segment.file };
                if (count.* == segment.file_count) continue;
                const name = try numbered_name(scratch, &next_file, "dead", "bin");
                try made.append(scratch, name);
                const bytes = try dead_file.encode(scratch, segment.uuid, &segment.pending_delete);
                try diagnostics.write_file(store, name, bytes, diagnostic);
                if (segment.file) |before| try old.append(scratch, try scratch.dupe(u8, before));
                named.dead = name;
            }
            const wal_name = try numbered_name(self.allocator, &next_file, "log", "velolog");
            errdefer self.allocator.free(wal_name);
            try made.append(scratch, try scratch.dupe(u8, wal_name));
            var header: wal_file.Header = .{ .uuid = undefined, .salt = self.prng.next(), .first_sequence = self.sequence + 1 };
            _ = std.fmt.hexToBytes(&header.uuid, &self.uuid) catch return diagnostics.damaged(diagnostic, manifest_file.file_name, "has a damaged uuid", .{});
            const wal = store.create(wal_name) catch |err| return file_error(diagnostic, wal_name, "create", err);
            errdefer store.close(wal);
            const position = try begin_wal(self, delta, scratch, wal, wal_name, &header, diagnostic);
            try diagnostics.sync_folder(store, ".", diagnostic);

            const requests = try scratch.alloc(manifest_file.Request, self.requests.items.items.len);
            for (requests, self.requests.items.items) |*named, one| named.* = .{ .request = one.name, .sequence = one.sequence, .rows = one.rows, .row = one.row };
            const manifest: manifest_file.FolderManifest = .{
                .uuid = &self.uuid,
                .generation = self.generation + 1,
                .dim = self.dim,
                .metric = self.metric,
                .dtype = @tagName(self.dtype),
                .ids = if (self.kind) |kind| @tagName(kind) else null,
                .schema = self.schema,
                .built = self.built,
                .readers_understand = manifest_file.understood(self.has_rows or segments.len != 1, self.has_columns),
                .flushes = flushes,
                .sequence = self.sequence,
                .next_row = self.next_row,
                .next_file = next_file,
                .parts = segments,
                .first_log = wal_name,
                .requests = requests,
            };
            // Names are copied before the rename: from there on nothing may fail for want of memory.
            const kept = try scratch.alloc(?[]const u8, segments.len);
            @memset(kept, null);
            errdefer for (kept) |name| if (name) |one| self.allocator.free(one);
            for (segments, kept) |segment, *name| name.* = if (segment.dead) |file| try self.allocator.dupe(u8, file) else null;
            try made.append(scratch, temporary);
            try diagnostics.write_file(store, temporary, try manifest_file.write(scratch, &manifest), diagnostic);
            // Others see that their log is not as they left it, and look for another manifest: also if this one is killed before the
            // former log is gone.
            var end: [wal_file.record_header_bytes]u8 align(8) = @splat(0);
            if (self.wal != null) try self.append(&end, .promise, 0, diagnostic);
            self.last_is_promise = false; // for its own log it is not the last word
            store.rename(temporary, manifest_file.file_name) catch |err| {
                self.poisoned = true;
                return file_error(diagnostic, manifest_file.file_name, "replace", err);
            };
            diagnostics.sync_folder(store, ".", diagnostic) catch |err| {
                self.poisoned = true;
                return err;
            };

            self.close_wal();
            if (self.wal_name) |name| {
                try_append(scratch, &old, name);
                self.allocator.free(name);
            }
            for (given, kept, counts) |*segment, name, count| {
                if (segment.file) |before| self.allocator.free(before);
                segment.file = name;
                segment.file_count = count;
            }
            self.wal_name = wal_name;
            self.wal = wal;
            self.wal_header = header;
            self.position = position;
            self.wal_begin = position.offset;
            self.last_is_promise = position.offset > wal_file.header_bytes and self.reserved.items.len == 0;
            self.generation = manifest.generation;
            self.wal_generation = manifest.generation;
            self.next_file = next_file;
            self.manifest_sequence = self.sequence;
            self.synced_sequence = self.sequence;
            self.synced_offset = position.offset;
            self.checkpoint_at = checkpoint_bytes(self, given);
            self.changed.broadcast();
            for (old.items) |name| diagnostics.discard(store, name);
        }

        /// The size to which the log may grow: as long again as what it carries over, so that this is not written over and over.
        pub fn checkpoint_bytes(self: *Live, segments: []const Live.Segment) u64 {
            var rows: u64 = 0;
            for (segments) |segment| rows += segment.n;
            const most = if (self.options.checkpoint_bytes > 0) self.options.checkpoint_bytes else @max(least_bytes, rows / 16);
            return if (self.wal_begin == wal_file.header_bytes) most else self.wal_begin + @max(most, self.wal_begin);
        }

        /// The new log's header, and behind it the rows that no segment holds. A promise ends them: all of it is on the device before a
        /// manifest names it, so damage there is never taken for a torn end.
        fn begin_wal(self: *Live, delta: *const Delta, scratch: std.mem.Allocator, wal: Live.File, name: []const u8, header: *const wal_file.Header, diagnostic: *Diagnostic) Error!wal_file.Position {
            const store = self.store;
            var position: wal_file.Position = .begin(header);
            store.write(wal, &header.encode(), 0) catch |err| return file_error(diagnostic, name, "write", err);
            for (delta.records.items) |record| {
                const offset = position.offset;
                wal_file.seal(record.bytes, .carried, record.rows.count, 0, &position);
                store.write(wal, record.bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            if (delta.pending_delete.count > 0) {
                const size = std.mem.alignForward(usize, 4 * @as(usize, delta.pending_delete.count), 8);
                const bytes = try scratch.alloc(u8, wal_file.record_bytes(size));
                @memset(bytes, 0);
                var at: usize = wal_file.record_header_bytes;
                for (0..delta.rows) |row| {
                    if (!delta.pending_delete.bits.isSet(row)) continue;
                    std.mem.writeInt(u32, bytes[at..][0..4], @intCast(row), .little);
                    at += 4;
                }
                const offset = position.offset;
                wal_file.seal(bytes, .buried, delta.pending_delete.count, 0, &position);
                store.write(wal, bytes, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            if (position.offset > wal_file.header_bytes or self.reserved.items.len > 0) {
                const given = try scratch.alloc([2]u64, self.reserved.items.len);
                for (given, self.reserved.items) |*pair, one| pair.* = .{ one.first, one.count };
                const promise = try rows_file.encode_reserved(scratch, given);
                const offset = position.offset;
                wal_file.seal(promise, .promise, @intCast(given.len), offset, &position);
                store.write(wal, promise, offset) catch |err| return file_error(diagnostic, name, "write", err);
            }
            store.sync(wal) catch |err| return file_error(diagnostic, name, "sync", err);
            return position;
        }

        /// The only writer takes over what it finds: a torn end is put aside, the records of the log are written anew, since a device
        /// may have lost what its cache still shows, and litter goes.
        pub fn take_over(self: *Live, end: wal_file.End, diagnostic: *Diagnostic) Error!void {
            if (end == .torn) try put_aside(self, diagnostic);
            self.reserved.clearRetainingCapacity(); // of calls whose processes are gone
            if (self.position.offset > wal_file.header_bytes or end == .torn) {
                try make_checkpoint(self, diagnostic);
            } else {
                // The manifest may stand there by a rename that no sync has seen, and what it no longer names goes below: not before
                // the manifest is there for good.
                try diagnostics.sync_folder(self.store, ".", diagnostic);
                // The device may still hold a record of a call that failed, which only the page cache has lost.
                self.store.sync(self.wal.?) catch |err| return file_error(diagnostic, self.wal_name.?, "sync", err);
                self.synced_offset = self.position.offset;
                self.synced_sequence = self.sequence;
            }
            try self.remove_old_names(diagnostic);
            try remove_litter(self, diagnostic);
        }

        pub fn put_aside(self: *Live, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            const bytes = try diagnostics.read_file(self.allocator, store, self.wal_name.?, std.math.maxInt(u63), diagnostic) orelse
                return diagnostics.damaged(diagnostic, self.wal_name.?, "is missing", .{});
            defer self.allocator.free(bytes);
            var buffer: [80]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}.torn", .{self.wal_name.?}) catch unreachable; // manifest.zig limits it
            try diagnostics.write_file(store, name, bytes[@intCast(self.position.offset)..], diagnostic);
            try diagnostics.sync_folder(store, ".", diagnostic);
        }

        /// Files of ours that no manifest names: a checkpoint or an adoption was killed. Of torn ends the newest is kept.
        pub fn remove_litter(self: *Live, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
            var newest: []const u8 = "";
            for (names) |name| {
                if (is_ours(name, "log-", ".velolog.torn") and std.mem.order(u8, name, newest) == .gt) newest = name;
            }
            for (names) |name| {
                if (is_named(self, name) or std.mem.eql(u8, name, newest)) continue;
                if (is_ours(name, file_names.part_stem, "")) {
                    store.remove_unheld(name) catch {};
                } else if (std.mem.eql(u8, name, temporary) or is_ours(name, "dead-", ".bin") or is_ours(name, "log-", ".velolog") or is_ours(name, "log-", ".velolog.torn"))
                    diagnostics.discard(store, name);
            }
        }

        fn is_named(self: *Live, name: []const u8) bool {
            if (std.mem.eql(u8, name, self.wal_name.?)) return true;
            for (self.segments.items) |segment| {
                if (std.mem.eql(u8, name, segment.path)) return true;
                if (segment.file) |file| if (std.mem.eql(u8, name, file)) return true;
            }
            return false;
        }
    };
}

fn try_append(scratch: std.mem.Allocator, names: *std.ArrayList([]const u8), name: []const u8) void {
    const copy = scratch.dupe(u8, name) catch return; // then it is litter
    names.append(scratch, copy) catch {};
}
